package archive

import "os"

// disappearing makes a file that disappears when the process ends, however it ends.
func disappearing() (*os.File, error) {
	f, err := os.CreateTemp("", "pg-ratelimit-archive-*"+extension)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name()) // Windows cannot do that while the file is open
	return f, nil
}

// closeTemporary closes and removes a file that temporary made.
func closeTemporary(f *os.File) error {
	err := f.Close()
	_ = os.Remove(f.Name()) // it is gone already, but on Windows
	return err
}
