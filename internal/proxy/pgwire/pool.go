package pgwire

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Options tune a Pool.
type Options struct {
	// MaxConns bounds the sum of the connections that are in use, idle or being made, and of the sessions
	// that a call has given up and the server has not ended. 0 means pool_max_conns of the connection string,
	// or 8.
	MaxConns int

	// Logger receives messages for the operator. Nil drops them.
	Logger func(message string)

	// Renew returns the connection string for each new connection. Its pool_… parameters have no effect. If
	// Renew is nil, all connections use the string passed to Open.
	Renew func() (string, error)
}

// Pool is a pgdb.DB over a bounded number of connections.
type Pool struct {
	cfg     *config
	renew   func() (string, error) // see Options; nil if the connection string does not change
	moved   []target               // the target of At; nil means the connection string's targets
	created time.Time
	targets targetMemory
	runner  *pg.Runner

	mu          sync.Mutex // guards the fields below
	dsn         string     // the latest connection string
	login       *config    // parsed from dsn, for new connections
	closed      bool
	idle        []*conn     // the last element was used last and is used next
	open        int         // the number of connections: idle, in use, being made and being canceled
	dials       []*dial     // connections being made, oldest first
	waiters     []*waiter   // oldest first; empty while there are idle connections
	lastError   string      // the error of the last dial, or ""
	lastFailure time.Time   // the time of the last failed dial
	idleTimer   *time.Timer // calls closeExpired; nil before the first idle connection
	cancels     int         // the number of connections being canceled
	uses        int         // conn.uses of a new connection: 0, except in tests
}

// Open parses a connection string (see the package comment), reads the environment and certificates, and
// returns a pool that connects on first use. An error names the parameter and never contains a password.
func Open(dsn string, o Options) (*Pool, error) {
	if o.Logger == nil {
		o.Logger = func(string) {}
	}
	cfg, err := parseConfig(dsn, o.Logger)
	if err != nil {
		return nil, fmt.Errorf("pgwire: %w", err)
	}
	if o.MaxConns > 0 {
		cfg.maxConns = o.MaxConns
	}
	return &Pool{cfg: cfg, renew: o.Renew, dsn: dsn, login: cfg, created: time.Now(),
		runner: pg.NewRunner(cfg.maxConns)}, nil
}

// currentConfig returns the configuration for a new connection, from Options.Renew, or the latest valid one.
// If the server, the database or the user has changed, all older connections expire: idle connections are
// closed before their next use, and connections in use when they are released.
func (p *Pool) currentConfig() (*config, error) {
	if p.renew == nil {
		return p.cfg, nil
	}
	dsn, err := p.renew()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if dsn == p.dsn {
		return p.login, nil
	}
	cfg, err := parseConfig(dsn, p.cfg.log)
	if err != nil {
		p.dsn = dsn // so that the log has it once
		p.cfg.log("a changed DSN is refused, and the one before stays in use: " + err.Error())
		return p.login, nil
	}
	if p.moved != nil {
		cfg.targets = p.moved
	}
	if cfg.destination() != p.login.destination() {
		p.targets.replace()
	}
	p.dsn = dsn
	p.login = cfg
	return cfg, nil
}

// At returns a pool for another server of the same database.
func (p *Pool) At(host string, port int) (pgdb.DB, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cfg := *p.login
	cfg.targets = []target{{host: host, port: strconv.Itoa(port)}}
	return &Pool{cfg: &cfg, renew: p.renew, moved: cfg.targets, dsn: p.dsn, login: &cfg, created: time.Now(),
		runner: pg.NewRunner(cfg.maxConns)}, nil
}

// MaxConns returns the bound on the connections.
func (p *Pool) MaxConns() int { return p.cfg.maxConns }

// Close implements pgdb.DB. It does not wait for calls in flight. The connections of these calls are closed
// when the calls finish. Further calls of Close do nothing.
func (p *Pool) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	idle, waiters := p.idle, p.waiters
	p.idle = nil
	p.waiters = nil
	for _, w := range waiters {
		p.endWait(w, nil, &pg.ServerError{Err: errClosed})
	}
	for _, d := range p.dials {
		d.stop()
	}
	if p.idleTimer != nil {
		p.idleTimer.Stop()
	}
	p.mu.Unlock()
	for _, c := range idle {
		p.drop(c, true)
	}
}
