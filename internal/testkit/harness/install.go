package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// installPackage installs a package of Debian's, and keeps Debian from starting it as a
// service.
const installPackage = `set -e
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then
	printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$1"`

// Installed returns the path of a program. Where it is missing, and this account may, it
// installs Debian's package of the same name first.
func Installed(ctx context.Context, name string) (string, error) {
	if path := look(name); path != "" {
		return path, nil
	}
	missing := fmt.Errorf("no %s on this machine: install it (Debian, Ubuntu: apt-get install %[1]s)", name)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", missing
	}
	command := []string{"sh", "-c", installPackage, "sh", name}
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return "", missing
		}
		command = append([]string{"sudo", "-n"}, command...)
	}
	fmt.Fprintf(os.Stderr, "No %s on this machine: installing Debian's package (apt-get install %[1]s)\n", name)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%w (installing it: %w: %s)", missing, err, lines[len(lines)-1])
	}
	if path := look(name); path != "" {
		return path, nil
	}
	return "", missing
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
