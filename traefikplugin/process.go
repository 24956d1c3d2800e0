package traefikplugin

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// process has what all middlewares of this interpreter share. A Traefik process has one interpreter
// for each plugin. At each reload, Traefik makes a new middleware for each router, and ends the contexts of
// the old middlewares.
type process struct {
	host     *host.Process
	attached int32 // 1 once flushAtShutdown has found a server; atomic

	mu     sync.Mutex        // guards what follows
	said   map[string]string // what the log has of each middleware
	setups map[string]*setup // the latest of each middleware
}

// shared is the process of all middlewares.
var shared = newProcess(10 * time.Second)

const (
	// leaseHorizon is for how long leases should last. A renewal takes far more time interpreted than
	// compiled, so leases last longer than the default.
	leaseHorizon = 4 * time.Second

	// remembered bounds the combinations of tier, method, host and path for which a policy caches the
	// matching rules. The interpreter takes long to match rules. With 0, which also turns off policy.Recall,
	// a request with a cached API key takes 1.6 times the processor time, and 1,570 allocations instead of
	// 860.
	remembered = 16384
)

// program names this program. Traefik does not tell plugins its version.
var program = "Traefik, pg-ratelimit " + host.Version

// newProcess returns a process in which what has no user is closed after a delay.
func newProcess(delay time.Duration) *process {
	return &process{said: map[string]string{}, setups: map[string]*setup{}, host: &host.Process{
		Kind: "traefik", Version: program, Delay: delay, LeaseHorizon: leaseHorizon, Remember: remembered,
		Log: func(line host.Line) { write("", line) }, Connect: connect,
	}}
}

// connect is an host.Process's Connect. Errors of pgwire have no DSN.
func connect(at *host.DataSource) (pgdb.DB, error) {
	db, err := pgwire.Open(at.DSN,
		pgwire.Options{MaxConns: at.MaxConns, Renew: at.Renew,
			Logger: func(text string) { write("", host.Line{Level: host.Error, Text: text}) }})
	if err != nil {
		return nil, fmt.Errorf("dsn: %w", err)
	}
	return db, nil
}

// say logs what a middleware has understood, unless the log has it. The caller holds the mutex.
func (p *process) say(middleware, text string) {
	if p.said[middleware] != text {
		p.said[middleware] = text
		write("", host.Line{Text: text})
	}
}
