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

// tellEvery is the time between two lines about an installation.
const tellEvery = 10 * time.Second

// installer installs Debian's server without starting one.
type installer struct {
	conf string        // createclusterConf, or a file of a test
	tell io.Writer     // gets lines about the progress
	tick time.Duration // between two of these lines
}

// installStep is one program of an installation.
type installStep struct {
	what string // for the user
	args []string

	// whole steps are never interrupted. They change the installed packages:
	// dpkg does not recover by itself from an interruption.
	whole bool
}

// configureScript installs the downloaded packages. The package
// postgresql-common comes first, because it brings the switch in $1 with it.
// The switch is off only while the package postgresql is being installed. This is
// one script, so that the switch is restored even if this program is killed.
const configureScript = `set -e
conf=$1
install() { apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$1"; }
install postgresql-common
if [ -f "$conf" ]; then
	[ -e "$conf.before" ] || cp -p "$conf" "$conf.before"
	trap 'mv -f "$conf.before" "$conf"' EXIT
	sed -i -E 's/^#? *create_main_cluster *=.*$/create_main_cluster = false/' "$conf"
fi
install postgresql
`

func (i installer) steps() []installStep {
	return []installStep{
		{what: "reading the lists of packages", args: []string{"apt-get", "update", "-q"}},
		{what: "downloading the packages", args: []string{"apt-get", "install", "-q", "-y", "--no-install-recommends",
			"-o", "DPkg::Lock::Timeout=300", "--download-only", "postgresql-common", "postgresql"}},
		{what: "installing the packages", args: []string{"sh", "-c", configureScript, "sh", i.conf}, whole: true},
	}
}

// install installs Debian's package, if this process may, and looks again.
// Several processes may come here at once: one of them installs, the others
// wait and find what it has installed. If ctx ends, install still waits for
// the end of a step that must be whole.
func (i installer) install(ctx context.Context, look func() string) (string, error) {
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
	unlock, err := lockInstall(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir := look(); dir != "" {
		return dir, nil
	}
	fmt.Fprintln(i.tell, "There is no Postgres server on this machine. Installing Debian's package postgresql with apt-get ...")
	prefix = append(prefix, "env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	steps := i.steps()
	for n, step := range steps {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		step.what = fmt.Sprintf("Postgres, step %d of %d: %s", n+1, len(steps), step.what)
		step.args = append(append([]string{}, prefix...), step.args...)
		said, err := i.run(ctx, step)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err != nil {
			return "", fmt.Errorf("%w (%s: %w: %s)", ErrNoServer, step.what, err, said)
		}
	}
	if dir := look(); dir != "" {
		fmt.Fprintln(i.tell, "Postgres is installed.")
		return dir, nil
	}
	return "", fmt.Errorf("%w (apt-get installed the package postgresql, and no initdb came with it)", ErrNoServer)
}

// run runs a step in a process group of its own, which Ctrl-C in a terminal
// does not reach, and returns the last line of its output. The output goes to
// a file: with a pipe, the step would fail if this program were killed.
func (i installer) run(ctx context.Context, step installStep) (said string, err error) {
	output, err := os.CreateTemp("", "pg-ratelimit-install-*.log")
	if err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	defer func() { err = errors.Join(err, output.Close(), os.Remove(output.Name())) }()
	cmd := exec.Command(step.args[0], step.args[1:]...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	fmt.Fprintln(i.tell, step.what)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(i.tick)
	defer tick.Stop()
	stop := ctx.Done()
	for {
		select {
		case err := <-ended:
			return lastLine(output.Name()), err
		case <-tick.C:
			fmt.Fprintf(i.tell, "%s, %d s: %s\n", step.what, int(time.Since(began).Seconds()), lastLine(output.Name()))
		case <-stop:
			stop = nil
			if step.whole {
				fmt.Fprintln(i.tell, "Waiting until apt-get has installed Postgres: an interruption would leave dpkg broken. Please do not kill it.")
				continue
			}
			// To the whole group: apt-get starts programs that download. If it
			// runs as another account, by way of sudo, the signal is refused, and
			// the step ends by itself.
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		}
	}
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
