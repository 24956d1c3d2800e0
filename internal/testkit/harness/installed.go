package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
)

// Installed returns the path of a program. If the program is missing, Installed first tries to install
// Debian's package of the same name.
func Installed(ctx context.Context, name string) (string, error) {
	if err := install.Debian(ctx, os.Stderr, name, func() bool { return find(name) != "" },
		name); err != nil {
		return "", fmt.Errorf(
			"no %s on this machine: install it (Debian, Ubuntu: apt-get install %[1]s) (%w)", name, err)
	}
	return find(name), nil
}

// find returns the path of a program, or "". It also searches the folders of Debian's servers, because only
// root's PATH contains them.
func find(name string) string {
	for _, folder := range []string{"", "/usr/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(folder + name); err == nil {
			return path
		}
	}
	return ""
}
