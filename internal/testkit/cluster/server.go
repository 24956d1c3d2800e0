package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// startTimeout bounds the wait until a server accepts connections.
	startTimeout = 60 * time.Second
	// stopTimeout bounds each attempt to end a server.
	stopTimeout = 10 * time.Second
	// pollEvery is the interval of the checks while a server starts or ends.
	pollEvery = 10 * time.Millisecond
	// portAttempts bounds the attempts to start a server on a port that no other program takes first.
	portAttempts = 20
	// logTail is the number of bytes at the end of the log that errors show.
	logTail = 4096
)

// errPortTaken is the error of launch if another program listens on the port.
var errPortTaken = errors.New("port is taken")

// portSetting matches the port in a file of configure.
var portSetting = regexp.MustCompile(`(?m)^port = '(\d+)'`)

// launchOnFreePort starts the server on the port that a permanent cluster had before, or on a free port. If
// another program has the port, launchOnFreePort tries the next port. The caller holds the mutex.
func (c *Cluster) launchOnFreePort(ctx context.Context) error {
	var earlier [][]byte
	if c.life == permanent {
		settings, _ := os.ReadFile(filepath.Join(c.DataDir(), settingsFile)) // there may be none
		earlier = portSetting.FindSubmatch(settings)
	}
	var err error
	for i := range portAttempts {
		if i == 0 && earlier != nil {
			c.port, err = strconv.Atoi(string(earlier[1]))
		} else {
			c.port, err = freePort()
		}
		if err != nil {
			return err
		}
		if err = c.launch(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// freePort returns a free loopback port below the range of outgoing connections (from 32768 on Linux, 49152
// on macOS). During a Restart, a client could take a port of that range, and a client that retries such a
// port may even connect to itself.
func freePort() (int, error) {
	const low, high = 15000, 30000
	var err error
	for range 100 {
		port := low + rand.IntN(high-low)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("cluster: no free port: %w", err)
}

// launch starts the server and waits until it accepts connections. The caller holds the mutex and has called
// prepare. No server is running.
func (c *Cluster) launch(ctx context.Context) error {
	if err := c.checkUnused(); err != nil {
		return err
	}
	if err := c.configure(); err != nil {
		return err
	}
	log, err := os.OpenFile(c.LogFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	// The server outlives ctx, which bounds only the start.
	cmd := c.command(context.WithoutCancel(ctx), "postgres", "-D", c.DataDir())
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("cluster: %w", err), log.Close())
	}
	run := &run{cmd: cmd, exited: make(chan struct{})}
	c.run = run
	go func() {
		run.err = errors.Join(cmd.Wait(), log.Close())
		close(run.exited)
	}()
	if err := c.leash.Hold(cmd.Process.Pid); err != nil {
		return errors.Join(err, c.killServer())
	}
	if err := c.awaitReady(ctx); err != nil {
		return errors.Join(err, c.killServer())
	}
	return nil
}

// awaitReady waits until the server's pid file shows that it accepts connections, like pg_ctl. This needs no
// password and no connection.
func (c *Cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if file := readPidFile(c.DataDir()); file.pid == c.run.pid() && file.status == "ready" {
			return nil
		}
		select {
		case <-tick.C:
		case <-c.run.exited:
			log := c.logTail()
			if strings.Contains(log, "could not create any TCP/IP sockets") {
				return fmt.Errorf("cluster: port %d: %w", c.port, errPortTaken)
			}
			return fmt.Errorf("cluster: the server ended while starting (%w): %s", c.run.err, log)
		case <-ctx.Done():
			return fmt.Errorf("cluster: the server is not ready: %w: %s", ctx.Err(), c.logTail())
		}
	}
}

// pidFile is the content of the server's postmaster.pid, or zero if the file is missing.
type pidFile struct {
	pid    int
	port   string
	status string // "starting", "ready", "stopping" …
}

func readPidFile(data string) pidFile {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return pidFile{}
	}
	lines := strings.Split(string(text), "\n")
	var file pidFile
	file.pid, _ = strconv.Atoi(lines[0])
	if len(lines) > 3 {
		file.port = lines[3]
	}
	if len(lines) > 7 {
		file.status = strings.TrimSpace(lines[7])
	}
	return file
}

// checkUnused returns an error if another program runs a server on the data. If the pid file has the number
// of an unrelated program, as happens in containers, checkUnused removes the file, because Postgres would not
// start with it.
func (c *Cluster) checkUnused() error {
	file := readPidFile(c.DataDir())
	if file.pid <= 0 || errors.Is(syscall.Kill(file.pid, 0), syscall.ESRCH) {
		return nil
	}
	command := commandLine(file.pid)
	if command == "" || strings.Contains(command, c.DataDir()) {
		return fmt.Errorf("cluster: a server runs on %s already (pid %d): end it, or count in it with "+
			"DATABASE_URL='postgres://postgres@127.0.0.1:%s/postgres?sslmode=disable'",
			c.DataDir(), file.pid, file.port)
	}
	if err := os.Remove(filepath.Join(c.DataDir(), "postmaster.pid")); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// logTail returns the end of the server's log.
func (c *Cluster) logTail() string {
	text, err := os.ReadFile(c.LogFile())
	if err != nil {
		return err.Error()
	}
	if len(text) > logTail {
		text = text[len(text)-logTail:]
	}
	return strings.TrimSpace(string(text))
}
