package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
)

// Installed returns the path of a program. Where it is missing, and this account may, it
// installs Debian's package of the same name first.
func Installed(ctx context.Context, name string) (string, error) {
	if err := install.Debian(ctx, os.Stderr, name, func() bool { return look(name) != "" },
		name); err != nil {
		return "", fmt.Errorf(
			"no %s on this machine: install it (Debian, Ubuntu: apt-get install %[1]s) (%w)", name, err)
	}
	return look(name), nil
}

// look finds a program, or "". Debian has servers where only root looks.
func look(name string) string {
	for _, folder := range []string{"", "/usr/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(folder + name); err == nil {
			return path
		}
	}
	return ""
}
