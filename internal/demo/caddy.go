package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/leash"
)

const (
	caddyStart = 30 * time.Second // bounds the time until Caddy listens
	caddyStop  = 10 * time.Second // bounds the time for requests in flight to end
)

// caddy is a running Caddy.
type caddy struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc // stops Caddy, and kills it after caddyStop
	leash  *leash.Leash
	log    string // path of the log
	port   string
	exited chan struct{} // closed when Caddy has ended
}

// startCaddy starts Caddy with the environment variables that the Caddyfile uses.
func startCaddy(o options, dsn, upstream string) (*caddy, error) {
	c := &caddy{log: filepath.Join(o.state, "caddy.log"), port: o.port, exited: make(chan struct{})}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	c.cmd = exec.CommandContext(ctx, o.caddy, "run", "--config", o.config, "--adapter", "caddyfile")
	c.cmd.Stdout, c.cmd.Stderr = log, log
	home := filepath.Join(o.state, "caddy")
	c.cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "UPSTREAM="+upstream, "PORT="+o.port,
		"XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	// Caddy is in its own process group, so that Ctrl-C reaches it only through this program.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = caddyStop
	if c.leash, err = leash.New(syscall.SIGTERM); err != nil {
		c.cancel()
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(err, c.leash.End())
	}
	go func() {
		_ = c.cmd.Wait() // how it ended is in ProcessState
		close(c.exited)
	}()
	if err := c.leash.Hold(c.cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// awaitListening waits until Caddy listens, after it has loaded its configuration. It sends no request,
// because the limit would charge it.
func (c *caddy) awaitListening(ctx context.Context) error {
	for deadline := time.Now().Add(caddyStart); ; {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", c.port))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-c.exited:
			return fmt.Errorf("caddy ended by itself (%v): %s", c.cmd.ProcessState, c.tail())
		case <-ctx.Done():
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("caddy does not listen on port %s after %v: %s", c.port, caddyStart, c.tail())
		}
	}
}

// stop stops Caddy, and waits until it has ended. Caddy first finishes requests in flight, for at most
// caddyStop.
func (c *caddy) stop() error {
	c.cancel()
	<-c.exited
	return c.leash.End()
}

// tail returns the end of Caddy's log.
func (c *caddy) tail() string {
	log, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(log))
}

// checkPort returns an error if the port is in use. Caddy itself would share the port with another Caddy.
func checkPort(port string) error {
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("PORT is %q, must be a number from 1 to 65535", port)
	}
	// If a program has the port on loopback only, some systems let another one listen on all addresses.
	for _, host := range []string{"", "127.0.0.1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("port %s is taken by another program: end it, or choose another port with "+
				"make run PORT=8081", port)
		}
		if err != nil {
			return fmt.Errorf("port %s: %w", port, err)
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}
