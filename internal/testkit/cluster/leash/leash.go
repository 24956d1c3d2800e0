// Package leash ensures that a child process does not outlive this process, even if a panic or SIGKILL ends
// this process.
//
// A Leash is a small shell that reads a pipe. Only this process holds the other end of the pipe. When this
// process ends, the pipe closes. The shell then ends the latest child and removes the folders of the leash.
// A leash needs only /bin/sh, so it works on Linux and macOS. The parent-death signal of Linux cannot replace
// it: that signal comes when a thread ends, does not exist on macOS, and removes no folder.
package leash

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// script is the script of the shell. $1 is the number of the first signal to the child, and further arguments
// are the folders to remove. The script first continues a stopped child. If the child still runs ten seconds
// after the first signal, the script sends SIGQUIT, which ends Postgres immediately, and after ten more
// seconds SIGKILL. The script tries up to three times to remove a folder, because children of the child may
// still write to it. A zombie counts as ended, because in some containers nobody waits for it.
//
//go:embed leash.sh
var script string

// Leash ends a child process with this process. Its methods are safe for concurrent use.
type Leash struct {
	mu   sync.Mutex
	pipe io.WriteCloser
	cmd  *exec.Cmd
}

// New starts a leash without a child. After the end of this process, the leash sends the signal sig to the
// child, and removes folders when the child has ended.
func New(sig syscall.Signal, folders ...string) (*Leash, error) {
	// A variable keeps the script out of the output of ps.
	args := []string{"-c", `eval "$LEASH"`, "leash", strconv.Itoa(int(sig))}
	cmd := exec.Command("/bin/sh", append(args, folders...)...)
	cmd.Env = append(os.Environ(), "LEASH="+script)
	// In its own session, the shell survives Ctrl-C and the end of the terminal, which end the foreground
	// programs.
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

// Hold sets the child that the leash ends, which replaces an earlier child. 0 means no child.
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

// End ends the shell, and leaves the child and the folders as they are.
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
