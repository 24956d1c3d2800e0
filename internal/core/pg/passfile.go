package pg

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// CheckPassfile checks the password file of a DSN with these parameters, unless the DSN or the environment
// has a password. It returns an error if the file is named and cannot be read, or if all accounts may read
// it.
func CheckPassfile(values map[string]string) error {
	get := func(parameter, variable string) string {
		if value, ok := values[parameter]; ok {
			return value
		}
		return os.Getenv(variable)
	}
	if get("password", "PGPASSWORD") != "" {
		return nil
	}
	name, path := "passfile", get("passfile", "PGPASSFILE")
	named := path != ""
	if !named {
		name, path = "~/.pgpass", os.Getenv("HOME")+"/.pgpass"
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() {
		if err := CheckMode(name, info); err != nil {
			return err
		}
	}
	if err == nil && (info.Mode().IsRegular() || info.IsDir()) { // a pipe would wait
		_, err = os.ReadFile(path)
	}
	if err != nil && named {
		return fmt.Errorf("passfile cannot be read: %w", errors.Unwrap(err))
	}
	return nil
}

// CheckMode returns an error if all accounts may use a file with a secret, which the error calls name.
func CheckMode(name string, info os.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o007 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("%s has the mode %04o, must be for its owner and group alone, such as 0600 "+
			"or 0440", name, mode)
	}
	return nil
}
