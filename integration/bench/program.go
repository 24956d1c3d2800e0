package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster/leash"
)

const (
	startPatience = 60 * time.Second // for a program to answer
	stopPatience  = 15 * time.Second // for each way of asking it to end
	logTail       = 2000             // bytes of a log's end in an error
)

// program is a server that runs until it is stopped, or this process is gone.
type program struct {
	name   string
	cmd    *exec.Cmd
	leash  *leash.Leash
	log    string        // the file that it logs to
	exited chan struct{} // closed when it has ended
}

// startProgram starts a program in a folder of its own below dir.
func startProgram(dir, name, path string, args ...string) (*program, error) {
	p := &program{name: name, exited: make(chan struct{})}
	home := filepath.Join(dir, homeOf(name))
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	p.log = filepath.Join(home, "log")
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir = home
	p.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// In a group of its own, Ctrl-C reaches it only by way of this program.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.leash, err = leash.New(syscall.SIGTERM); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, p.leash.End())
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.exited)
	}()
	if err := p.leash.Hold(p.pid()); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// homeOf is the name of a program's folder.
func homeOf(name string) string {
	return strings.NewReplacer(" ", "-", ",", "", "+", "").Replace(name)
}

func (p *program) pid() int { return p.cmd.Process.Pid }

// stop asks the program to end, and waits until it has.
func (p *program) stop() error {
	for _, ask := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := p.cmd.Process.Signal(ask); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		timer := time.NewTimer(stopPatience)
		select {
		case <-p.exited:
			timer.Stop()
			return p.leash.End()
		case <-timer.C:
		}
	}
	return fmt.Errorf("%s (pid %d) does not end", p.name, p.pid())
}

// alive is an error if the program has ended by itself.
func (p *program) alive() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended by itself (%v): %s", p.name, p.cmd.ProcessState, p.tail())
	default:
		return nil
	}
}

// tail is the end of the program's log.
func (p *program) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(text) > logTail {
		text = text[len(text)-logTail:]
	}
	return strings.TrimSpace(string(text))
}

// await polls until done says so.
func (p *program) await(ctx context.Context, what string, done func() bool) error {
	deadline := time.NewTimer(startPatience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-p.exited:
			return p.alive()
		case <-deadline.C:
			return fmt.Errorf("%s: waited %v for %s: %s", p.name, startPatience, what, p.tail())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// awaitOK waits until a request is answered with 200.
func (p *program) awaitOK(ctx context.Context, address string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return p.await(ctx, "200 from "+address, func() bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", http.NoBody)
		if err != nil {
			return false
		}
		request.Header.Set(keyHeader, "ready")
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return err == nil && response.StatusCode == http.StatusOK
	})
}

// awaitListener waits until something takes connections.
func (p *program) awaitListener(ctx context.Context, address string) error {
	return p.await(ctx, "it to listen on "+address, func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		return err == nil && conn.Close() == nil
	})
}

// freeAddress is a loopback address that nobody listens on. Its port lies below
// the range that systems use for outgoing connections.
func freeAddress() (string, error) {
	const low, high = 20000, 32768
	var err error
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(low+rand.IntN(high-low)))
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}
