package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/leash"
)

// tellEvery is the time between two lines about a build.
const tellEvery = 10 * time.Second

// builder builds Caddy with two shell commands of the Makefile.
type builder struct {
	list  string // lists the packages of Caddy, one in a line, and downloads them
	build string // compiles Caddy, and writes a line for each package
	tell  io.Writer
	tick  time.Duration
}

// run builds Caddy, unless there is no command for it. It tells how far the
// build is.
func (b builder) run(ctx context.Context) error {
	if b.build == "" {
		return nil
	}
	packages := 0
	err := b.command(ctx, b.list, func() { packages++ }, func(p progress) string {
		return fmt.Sprintf("Caddy: %d modules downloaded, %d s", p.lines, p.seconds)
	})
	if err != nil {
		return err
	}
	began := time.Now()
	slow := false
	err = b.command(ctx, b.build, func() {}, func(p progress) string {
		slow = true
		// Packages that are compiled already have no line.
		return fmt.Sprintf("Caddy: %d of at most %d packages compiled, %d s", p.lines, packages, p.seconds)
	})
	if err == nil && slow {
		fmt.Fprintf(b.tell, "Caddy: built in %d s\n", int(time.Since(began).Seconds()))
	}
	return err
}

// progress is what a command has done until now.
type progress struct {
	seconds int
	lines   int // on standard error
}

// command runs a shell command, calls printed for each line on its standard
// output, and writes a line about its progress at times. If the context ends,
// the command is interrupted. The Go command then ends its compilers.
func (b builder) command(ctx context.Context, command string, printed func(), line func(progress) string) error {
	held, err := leash.New(syscall.SIGINT)
	if err != nil {
		return err
	}
	defer func() { _ = held.End() }()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	// In a group of its own, Ctrl-C reaches it only through this program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := held.Hold(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}

	began := time.Now()
	var mu sync.Mutex // guards done and tail
	var done progress
	var tail []string
	var readers sync.WaitGroup
	readers.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			printed()
		}
	})
	readers.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			mu.Lock()
			done.lines++
			tail = append(tail[max(0, len(tail)-logTail+1):], lines.Text())
			mu.Unlock()
		}
	})
	ended := make(chan struct{})
	go func() {
		readers.Wait()
		close(ended)
	}()
	tick := time.NewTicker(b.tick)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-tick.C:
			mu.Lock()
			now := done
			mu.Unlock()
			now.seconds = int(time.Since(began).Seconds())
			fmt.Fprintln(b.tell, line(now))
		}
	}
	if err := cmd.Wait(); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("building Caddy: %w: %s", err, strings.Join(tail, "\n"))
	}
	return nil
}
