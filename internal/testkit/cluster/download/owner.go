package download

import (
	"fmt"
	"os"
	"syscall"
)

// ownedByRoot checks a folder that lies where everybody may make one: what is
// in it will be run.
func ownedByRoot(folder string) error {
	info, err := os.Lstat(folder)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || stat.Uid != 0 || info.Mode()&0o022 != 0 {
		return fmt.Errorf("%s must be a folder of root that nobody else can write to: remove it, or name "+
			"another with -cache", folder)
	}
	return nil
}
