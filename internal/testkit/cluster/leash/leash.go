// Package leash makes sure that a child process does not outlive this one,
// however this one ends: by returning, by a panic, or by SIGKILL.
//
// A Leash is a small shell that reads a pipe. Only this process holds the other end of the pipe.
// When this process is gone the pipe closes. The shell then ends the child that it got last, and removes the
// folders that it was given. It needs nothing but /bin/sh, so it works on
// Linux and macOS alike. Linux's parent-death signal is tied to a thread, is missing elsewhere,
// and removes no folder.
package leash

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// script is the script of the shell: $1 is the signal that asks a child to end,
// the further arguments are the folders to remove. A stopped child is
// continued first. A child that does not go within ten seconds gets SIGQUIT
// and ten more (Postgres ends at once at it, its own children within five
// seconds), and then SIGKILL. Folders are removed up to three times, since
// the last of a child's own children may still be writing to them. A zombie has
// ended; in some containers nobody ever waits for it.
const script = `
trap '' INT TERM HUP QUIT PIPE
ask=$1; shift
pid=
while read -r line; do
	if [ "$line" = end ]; then exit 0; fi
	pid=$line
done
cd /
runs() {
	kill -0 "$pid" || return 1
	if [ -r "/proc/$pid/stat" ] && read -r stat <"/proc/$pid/stat"; then
		case $stat in *") Z "*) return 1 ;; esac
	fi
}
gone() {
	i=0
	while runs; do
		[ "$i" -lt 200 ] || return 1
		sleep 0.05
		i=$((i + 1))
	done
}
if [ -n "$pid" ]; then
	kill -CONT "$pid"
	kill -"$ask" "$pid"
	gone || { kill -QUIT "$pid"; gone; } || kill -KILL "$pid"
fi
for folder in "$@"; do
	rm -rf -- "$folder" || { sleep 1; rm -rf -- "$folder"; } || { sleep 5; rm -rf -- "$folder"; }
done
`

// Leash is one such shell. Its methods are safe for concurrent use.
type Leash struct {
	mu   sync.Mutex
	pipe io.WriteCloser
	cmd  *exec.Cmd
}

// New starts a leash that holds no child yet. When this process is gone, ask
// is sent to the child, and the folders are removed once it has ended.
func New(ask syscall.Signal, folders ...string) (*Leash, error) {
	name, err := signalName(ask)
	if err != nil {
		return nil, err
	}
	// By way of a variable the script keeps out of what ps lists.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `eval "$LEASH"`, "leash", name}, folders...)...)
	cmd.Env = append(os.Environ(), "LEASH="+script)
	// A session of its own: Ctrl-C and a terminal that closes are for the
	// programs in front, and this shell must see them to their end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("leash: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("leash: %w", err)
	}
	return &Leash{pipe: pipe, cmd: cmd}, nil
}

// Hold names the child to end; it replaces the one named before. 0 means that
// there is none at present.
func (l *Leash) Hold(pid int) error {
	line := "\n"
	if pid != 0 {
		line = strconv.Itoa(pid) + "\n"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := io.WriteString(l.pipe, line); err != nil {
		return fmt.Errorf("leash: %w", err)
	}
	return nil
}

// End lets go: the child and the folders are left as they are, and the shell
// ends. A leash is of no use after it.
func (l *Leash) End() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.pipe, "end\n")
	if err != nil {
		return fmt.Errorf("leash: %w", err)
	}
	if err := l.cmd.Wait(); err != nil {
		return fmt.Errorf("leash: %w", err)
	}
	return nil
}

// signalName gives the name that kill(1) takes everywhere.
func signalName(s syscall.Signal) (string, error) {
	switch s {
	case syscall.SIGINT:
		return "INT", nil
	case syscall.SIGTERM:
		return "TERM", nil
	case syscall.SIGQUIT:
		return "QUIT", nil
	case syscall.SIGKILL:
		return "KILL", nil
	}
	return "", fmt.Errorf("leash: signal is %v, must be SIGINT, SIGTERM, SIGQUIT or SIGKILL", s)
}
