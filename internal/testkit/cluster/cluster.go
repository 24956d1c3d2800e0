// Package cluster runs private Postgres servers for tests and for the demo of `make run`. It finds the
// server's binaries on the machine, or installs Debian's package if it may. It works as root and as an
// ordinary user. It leaves no process behind, however the program that uses it ends.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/leash"
)

// Options configures a cluster. The zero value is a temporary cluster with Postgres's own settings.
type Options struct {
	// Dir is the folder of the cluster, which Start creates if it is missing. Start starts an existing
	// cluster with its data. Default: a temporary folder. If the server's account cannot use Dir (such as a
	// folder in root's home), a folder under the system's temporary folder replaces it, see Cluster.Dir.
	Dir string

	// BinDir is the folder of initdb and postgres. Default: the folder that Binaries returns.
	BinDir string

	// Config holds settings for postgresql.conf, by name. They override the defaults of this package, which
	// are the addresses and the time zone UTC.
	Config map[string]string

	// HBA is the whole content of pg_hba.conf. The default trusts everybody on the socket and on loopback.
	HBA string

	// Files are written into the data folder before the server starts, such as certificates and their keys.
	// Only the server's account can read them.
	Files map[string][]byte

	// Env is added to the environment of the server's programs.
	Env []string

	// Progress receives lines about the installation of Postgres. Default: standard error.
	Progress io.Writer
}

// Cluster is one Postgres server with its data. Its methods are safe for
// concurrent use.
type Cluster struct {
	opts    Options
	bin     string
	account account
	dir     string
	port    int
	life    lifetime

	mu      sync.Mutex
	sockets string
	leash   *leash.Leash
	run     *run // the last start of the server; nil before the first
}

// lifetime determines when the folder of a cluster is removed.
type lifetime int

const (
	permanent lifetime = iota // never
	untilStop                 // at Stop: the folder is a temporary one
	untilEnd                  // at the end of a test, which may stop and restart the cluster
)

// Start creates a cluster, unless o.Dir has one, and starts its server on a free loopback port and a Unix
// socket, with the superuser "postgres". It returns when the server accepts connections. ctx bounds only the
// start.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	life := permanent
	if o.Dir == "" {
		life = untilStop
	}
	return start(ctx, o, life)
}

func start(ctx context.Context, o Options, life lifetime) (_ *Cluster, err error) {
	defer func() {
		// The error of a program that ctx has ended says only that the program was killed.
		if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("cluster: %w: %w", ctx.Err(), err)
		}
	}()
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
	bin, err := Binaries(ctx, o.BinDir, o.Progress)
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, bin: bin, life: life}
	if o.Dir == "" {
		err = c.placeTemporary()
	} else {
		c.dir, c.account, err = chooseFolder(o.Dir)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release(life != permanent))
		}
	}()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	if err := c.launchOnFreePort(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// DSN returns the DSN of a database of the cluster, for its superuser.
func (c *Cluster) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", c.port,
		url.PathEscape(database))
}

// Port returns the TCP port on 127.0.0.1. Restart keeps the port.
func (c *Cluster) Port() int { return c.port }

// Dir returns the cluster's folder: Options.Dir, or the folder that replaced it.
func (c *Cluster) Dir() string { return c.dir }

// SocketDir returns the folder of the Unix socket, for the host of a DSN, while the server runs.
func (c *Cluster) SocketDir() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sockets
}

// LogFile returns the path of the server's log.
func (c *Cluster) LogFile() string { return filepath.Join(c.dir, "log") }

// DataDir returns the server's data folder.
func (c *Cluster) DataDir() string { return filepath.Join(c.dir, "data") }

// Stop closes the connections, shuts the server down, and returns when it has ended. The data stays unless
// its folder is temporary. Stop does nothing if the server is not running.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.stopServer()
	if c.life == untilEnd {
		return err
	}
	return errors.Join(err, c.release(c.life == untilStop))
}

// Restart starts the server with its previous port and data, after Stop or Kill. It first stops a running
// server.
func (c *Cluster) Restart(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.stopServer(); err != nil {
		return err
	}
	if _, err := os.Stat(c.DataDir()); err != nil {
		return fmt.Errorf("cluster: nothing to restart: %w", err)
	}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	return c.launch(ctx)
}

// Kill ends all processes of the server with SIGKILL, like a crash, and returns when they have ended.
func (c *Cluster) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killServer()
}

// Pause stops all processes of the server with SIGSTOP. Connections stay open, the kernel accepts new ones,
// and nothing responds.
func (c *Cluster) Pause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running() {
		return errors.New("cluster: nothing to pause: the server does not run")
	}
	return c.freeze()
}

// Resume continues a paused server.
func (c *Cluster) Resume() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running() {
		return errors.New("cluster: nothing to resume: the server does not run")
	}
	return c.thaw()
}

// Runs reports whether the server is running.
func (c *Cluster) Runs() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running()
}

// remove stops the server and removes the cluster's folder.
func (c *Cluster) remove() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.stopServer(), c.release(true))
}

// prepare creates the folder for sockets, the leash and the data for a start. The caller holds the mutex.
func (c *Cluster) prepare(ctx context.Context) error {
	if c.sockets == "" {
		if err := c.makeSocketDir(); err != nil {
			return err
		}
	}
	if c.leash == nil {
		sig, folders := syscall.SIGINT, []string{c.sockets}
		if c.life != permanent {
			// The data will not be read again, so the server needs no checkpoint.
			sig, folders = syscall.SIGQUIT, append(folders, c.dir)
		}
		l, err := leash.New(sig, folders...)
		if err != nil {
			return err
		}
		c.leash = l
	}
	return c.makeDataDir(ctx)
}

// release ends the leash and removes the folder for sockets, and with removeData the cluster's folder. The
// caller holds the mutex. The server has ended.
func (c *Cluster) release(removeData bool) error {
	var errs []error
	if c.sockets != "" {
		errs = append(errs, os.RemoveAll(c.sockets))
		c.sockets = ""
	}
	if removeData {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	if c.leash != nil {
		errs = append(errs, c.leash.End())
		c.leash = nil
	}
	return errors.Join(errs...)
}
