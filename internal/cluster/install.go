package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// createclusterConf is Debian's switch for the cluster that its package would
// make and start by itself.
const createclusterConf = "/etc/postgresql-common/createcluster.conf"

// installSteps install Debian's server without starting one. The first two
// are apart from the third because the switch belongs to postgresql-common.
var installSteps = [][]string{
	{"apt-get", "update", "-qq"},
	{"apt-get", "install", "-qq", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "postgresql-common"},
	{"sed", "-i", "-E", `s/^#? *create_main_cluster *=.*$/create_main_cluster = false/`, createclusterConf},
	{"apt-get", "install", "-qq", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "postgresql"},
}

// installDebian installs Debian's package, if this process may, and looks
// again. Test processes come here several at once: one installs, the others
// wait and find what it has installed.
func installDebian(ctx context.Context, look func() string) (string, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", ErrNoServer
	}
	var prefix []string
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return "", ErrNoServer
		}
		prefix = []string{"sudo", "-n"}
	}
	unlock, err := lockInstall()
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir := look(); dir != "" {
		return dir, nil
	}
	fmt.Fprintln(os.Stderr, "pg-ratelimit: no Postgres server on this machine: installing Debian's package (apt-get install postgresql)")
	prefix = append(prefix, "env", "DEBIAN_FRONTEND=noninteractive")
	for _, step := range installSteps {
		step = append(append([]string{}, prefix...), step...)
		out, err := exec.CommandContext(ctx, step[0], step[1:]...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w (%s: %w: %s)", ErrNoServer, strings.Join(step, " "), err, lastLine(out))
		}
	}
	if dir := look(); dir != "" {
		return dir, nil
	}
	return "", fmt.Errorf("%w (apt-get installed the package postgresql, and no initdb came with it)", ErrNoServer)
}

// lockInstall waits for this account's lock on installing.
func lockInstall() (unlock func(), err error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("pg-ratelimit-install-%d.lock", os.Geteuid()))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cluster: %s: %w", path, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
