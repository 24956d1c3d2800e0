package cluster

import (
	"context"
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

// createclusterConf holds Debian's switch for the cluster that its package
// creates and starts by itself.
const createclusterConf = "/etc/postgresql-common/createcluster.conf"

// installer installs Debian's server without starting one.
type installer struct {
	conf string    // createclusterConf, or a file of a test
	tell io.Writer // gets lines about the progress
}

// installScript installs Debian's packages. The package postgresql-common comes first, because it brings the
// switch in $1 with it. The switch is off only while the package postgresql is being installed. This is
// one script, so that the switch is restored even if this program is killed.
const installScript = `set -e
conf=$1
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
install() { apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$1"; }
apt-get update -q
install postgresql-common
if [ -f "$conf" ]; then
	[ -e "$conf.before" ] || cp -p "$conf" "$conf.before"
	trap 'mv -f "$conf.before" "$conf"' EXIT
	sed -i -E 's/^#? *create_main_cluster *=.*$/create_main_cluster = false/' "$conf"
fi
install postgresql
`

// install installs Debian's package, if this process may, and looks again.
// Several processes may come here at once: one of them installs, the others
// wait and find what it has installed. If ctx ends, install still waits for
// the end of the script: dpkg does not recover by itself from an interruption.
func (i installer) install(ctx context.Context, look func() string) (string, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", ErrNoServer
	}
	args := []string{"sh", "-c", installScript, "sh", i.conf}
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return "", ErrNoServer
		}
		args = append([]string{"sudo", "-n"}, args...)
	}
	unlock, err := lockInstall(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir := look(); dir != "" {
		return dir, nil
	}
	fmt.Fprintln(i.tell, "There is no Postgres server on this machine. Installing Debian's package postgresql with apt-get, which takes a minute or two ...")
	said, err := runWhole(args)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", fmt.Errorf("%w (apt-get: %w: %s)", ErrNoServer, err, said)
	}
	if dir := look(); dir != "" {
		fmt.Fprintln(i.tell, "Postgres is installed.")
		return dir, nil
	}
	return "", fmt.Errorf("%w (apt-get installed the package postgresql, and no initdb came with it)", ErrNoServer)
}

// runWhole runs a command in a process group of its own, which Ctrl-C in a terminal does not reach, and returns the last
// line of its output. The output goes to a file: with a pipe, the command would fail if this program were killed.
func runWhole(args []string) (said string, err error) {
	output, err := os.CreateTemp("", "pg-ratelimit-install-*.log")
	if err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	defer func() { err = errors.Join(err, output.Close(), os.Remove(output.Name())) }()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Run()
	return lastLine(output.Name()), err
}

// lockInstall waits for this account's lock on installing.
func lockInstall(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("pg-ratelimit-install-%d.lock", os.Geteuid()))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EINTR) && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("cluster: %s: %w", path, err), file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-time.After(pollEvery):
		}
	}
}

// lastLine is the last line of a file that is not empty, "" if there is none.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' || r == '\r' })
	for len(lines) > 0 {
		last := strings.TrimSpace(lines[len(lines)-1])
		if last != "" {
			return last
		}
		lines = lines[:len(lines)-1]
	}
	return ""
}
