// Package install installs Debian's packages, where the machine and the account allow it.
package install

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrMayNot is returned by Debian on a machine without apt-get, or if this process is not root and
// sudo asks for a password.
var ErrMayNot = errors.New("this process may not install packages")

// script installs packages one after the other. The package postgresql creates and starts a cluster by
// itself, unless a setting of the package postgresql-common forbids it. While the script installs further
// packages, it turns off this setting and the start of services. It restores both even if this program is
// killed, because it is one script.
//
//go:embed install.sh
var script string

// Debian installs packages, unless exist reports that their programs exist already. what names the programs
// in the messages that Debian writes to w. If several processes call Debian concurrently, one process
// installs the packages while the others wait. If ctx ends, Debian still waits for the script, because dpkg
// does not recover by itself from an interruption.
func Debian(ctx context.Context, w io.Writer, what string, exist func() bool, packages ...string) error {
	if exist() {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return ErrMayNot
	}
	args := append([]string{"sh", "-c", script, "sh"}, packages...)
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return ErrMayNot
		}
		args = append([]string{"sudo", "-n"}, args...)
	}
	unlock, err := Lock(ctx,
		filepath.Join(os.TempDir(), fmt.Sprintf("pg-ratelimit-install-%d.lock", os.Geteuid())))
	if err != nil {
		return err
	}
	defer unlock()
	if exist() {
		return nil
	}
	names := strings.Join(packages, " ")
	fmt.Fprintf(w, "There is no %s on this machine. Installing Debian's packages with apt-get (%s). "+
		"This takes a minute or two ...\n", what, names)
	line, err := runWhole(args)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("apt-get: %w: %s", err, line)
	}
	if !exist() {
		return fmt.Errorf("apt-get installed %s, and no %s came with it", names, what)
	}
	fmt.Fprintln(w, "Installed:", names)
	return nil
}

// runWhole runs a command in its own process group, which Ctrl-C in a terminal does not reach, and returns
// the last line of its output. The command writes to a file, because with a pipe it would fail if this
// program were killed.
func runWhole(args []string) (lastLine string, err error) {
	output, err := os.CreateTemp("", "pg-ratelimit-install-*.log")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, output.Close(), os.Remove(output.Name())) }()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	failed := cmd.Run()
	text, err := os.ReadFile(output.Name())
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1], errors.Join(failed, err)
}

// Lock waits for the lock of the file path, which one process holds at a time.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EINTR) && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
