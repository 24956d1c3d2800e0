package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
)

// installScript installs a Debian package. Its first line keeps Debian from
// starting the package's service.
const installScript = `
[ -e /usr/sbin/policy-rc.d ] || { trap 'rm -f /usr/sbin/policy-rc.d' EXIT; printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; }
install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$1"; }
install "$1" || { apt-get update -qq && install "$1"; }`

// tool finds a program, or installs the Debian package of the same name.
func (b *bench) tool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	log.Print("installing Debian's package ", name)
	command := []string{"sh", "-c", installScript, "sh", name}
	if os.Geteuid() != 0 {
		command = append([]string{"sudo", "-n"}, command...)
	}
	out, err := exec.CommandContext(b.ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		check(fmt.Errorf("no %s on this machine: install it (Debian, Ubuntu: apt-get install %[1]s), or leave out the rows that need it with -only (%w: %s)", name, err, out))
	}
	return must(exec.LookPath(name))
}

// output runs a program. What the program writes to stderr becomes part of the error.
func output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", cmd.Path, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return out, err
}
