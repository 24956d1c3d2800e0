package harness

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/leash"
)

const (
	// startPatience bounds each wait of WaitFor.
	startPatience = 60 * time.Second
	// stopPatience bounds the wait for the end of a program after a signal.
	stopPatience = 15 * time.Second
	// pollEvery is the interval of the checks of WaitFor.
	pollEvery = 5 * time.Millisecond
	// shownLog is the number of bytes at the end of a log that a failed test shows.
	shownLog = 6000
)

// Program configures a program to run.
type Program struct {
	Name string   // the name in messages; default: the last part of Path
	Path string   // the executable's path
	Args []string // without the name
	Env  []string // added to this process's environment
	Dir  string   // default: a temporary folder of the test; for Launch: the current folder
}

// Process is a started program. Its methods are safe for concurrent use.
type Process struct {
	name   string
	cmd    *exec.Cmd
	leash  *leash.Leash
	log    Buffer
	exited chan struct{} // closed when the program has ended
	err    error         // the result of Wait; set before exited is closed

	mu      sync.Mutex
	stopped bool // Stop or Kill has been called
}

// Start starts a program, and stops it at the test's end. A program that ends by itself fails the test. A
// failed test shows the end of the program's log.
func Start(t testing.TB, p Program) *Process {
	t.Helper()
	if p.Dir == "" {
		p.Dir = t.TempDir()
	}
	process, err := Launch(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.end(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", process.name, tail(process.log.String()))
		}
	})
	return process
}

// Launch starts a program for a caller that is not a test. The caller stops it. The program also ends if this
// process is killed.
func Launch(p Program) (*Process, error) {
	process := &Process{name: p.Name, exited: make(chan struct{})}
	if process.name == "" {
		process.name = filepath.Base(p.Path)
	}
	process.cmd = exec.Command(p.Path, p.Args...)
	process.cmd.Env = append(os.Environ(), p.Env...)
	process.cmd.Dir = p.Dir
	process.cmd.Stdout, process.cmd.Stderr = &process.log, &process.log
	// Ctrl-C does not reach a process in its own group. Only this process stops it.
	process.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A child of the program may keep the pipe of its log open.
	process.cmd.WaitDelay = stopPatience
	var err error
	if process.leash, err = leash.New(syscall.SIGTERM); err != nil {
		return nil, err
	}
	if err := process.cmd.Start(); err != nil {
		return nil, errors.Join(err, process.leash.End())
	}
	go func() {
		process.err = process.cmd.Wait()
		close(process.exited)
	}()
	if err := process.leash.Hold(process.PID()); err != nil {
		return nil, errors.Join(err, process.Kill())
	}
	return process, nil
}

// end stops the program at the test's end, unless the test has stopped it.
func (p *Process) end() error {
	p.mu.Lock()
	stopped := p.stopped
	p.mu.Unlock()
	if stopped {
		return nil
	}
	return p.Stop()
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the output that the program has written so far, to stdout and stderr.
func (p *Process) Log() string { return p.log.String() }

// Stop sends SIGTERM to the program, and waits until it has ended. It returns an error if the program had
// ended before, had to be killed, or failed.
func (p *Process) Stop() error {
	return p.StopBy(func() error { return p.signal(syscall.SIGTERM) })
}

// StopBy is like Stop, but calls end instead of sending SIGTERM.
func (p *Process) StopBy(end func() error) error {
	select {
	case <-p.exited:
		ended := errors.New(p.name + " ended by itself, with " + p.cmd.ProcessState.String() + ": " +
			tail(p.Log()))
		return errors.Join(ended, p.release())
	default:
	}
	if err := end(); err != nil {
		return err
	}
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s (pid %d) did not end within %v", p.name, p.PID(),
			stopPatience), p.Kill())
	}
	if p.err != nil {
		return errors.Join(fmt.Errorf("%s ended with %w: %s", p.name, p.err, tail(p.Log())), p.release())
	}
	return p.release()
}

// Kill ends the program with SIGKILL, and waits until it has ended.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.exited
	return p.release()
}

// signal sends a signal to a process that may have ended.
func (p *Process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s (pid %d): %w", p.name, p.PID(), err)
	}
	return nil
}

// release ends the leash. Only the first call has an effect.
func (p *Process) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	p.stopped = true
	return p.leash.End()
}

// AwaitAddress waits until the program accepts connections at address, a host:port.
func (p *Process) AwaitAddress(t testing.TB, address string) {
	t.Helper()
	p.Await(t, "it to listen on "+address, func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		return err == nil && conn.Close() == nil
	})
}

// Await is like WaitFor, but fails the test.
func (p *Process) Await(t testing.TB, what string, f func() bool) {
	t.Helper()
	if err := p.WaitFor(what, f); err != nil {
		t.Fatal(err)
	}
}

// WaitFor calls f until it returns true. It returns an error if the program ends first, or after a minute.
// what completes the error "waited 1m0s for ".
func (p *Process) WaitFor(what string, f func() bool) error {
	for deadline := time.Now().Add(startPatience); !f(); {
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended (%v) while waiting for %s: %s", p.name, p.cmd.ProcessState, what,
				tail(p.Log()))
		case <-time.After(pollEvery):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: waited %v for %s: %s", p.name, startPatience, what, tail(p.Log()))
		}
	}
	return nil
}

// ports holds the ports that FreePort has returned.
var ports = struct {
	sync.Mutex
	taken map[int]bool
}{taken: map[int]bool{}}

// FreePort returns a free loopback port, and returns each port only once. The port is below the range that
// the system uses for outgoing connections, so it stays free while a test restarts a program.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// FreeAddress returns 127.0.0.1 with a port of FreePort.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := FindAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// FindAddress is like FreeAddress, but returns an error.
func FindAddress() (string, error) {
	port, err := freePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func freePort() (int, error) {
	const low, high = 30000, 32768
	ports.Lock()
	defer ports.Unlock()
	for range 1000 {
		port := low + rand.IntN(high-low)
		if ports.taken[port] {
			continue
		}
		// The port must be free on all addresses, because Caddy and Traefik listen on all of them.
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil || l.Close() != nil {
			continue
		}
		ports.taken[port] = true
		return port, nil
	}
	return 0, errors.New("no free port")
}

// Buffer keeps the text that is written to it. It is safe for concurrent use.
type Buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *Buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(data)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

func tail(log string) string {
	if len(log) > shownLog {
		log = "… " + log[len(log)-shownLog:]
	}
	return strings.TrimSpace(log)
}

// Serve starts an HTTP server until the test's end, and returns its URL.
func Serve(t testing.TB, handler http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}
