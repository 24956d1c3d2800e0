package traefikplugin

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// process holds the state that all middlewares of an interpreter share. Traefik has one interpreter for each
// plugin. At each reload, Traefik creates a new middleware for each router and ends the contexts of the old
// middlewares.
type process struct {
	host     *host.Process
	attached int32 // 1 while watch has registered with a server; atomic

	mu        sync.Mutex        // guards the fields below
	logged    map[string]string // the last text of each topic in logOnce
	setups    map[string]*setup // the latest setup of each middleware
	load      <-chan struct{}   // closed when the latest load of Traefik's configuration ends
	conflicts *serve.Conflicts  // of the latest load
}

// shared is the process of all middlewares.
var shared = newProcess(10 * time.Second)

const (
	// leaseHorizon is the horizon of leases. A key with leaseHits hits in a horizon gets a lease. Both
	// constants are larger than the defaults, because a charge and a refund take far more time interpreted
	// than compiled. leaseHits is so large that few keys get a lease by chance, because such a lease ends
	// unused. With 6, requests of 10,000 equally busy keys take 1.1 times the processor time of an exact
	// limit instead of 1.0 times (go run . -only 'Traefik.*10,000 keys' in bench).
	leaseHorizon = 4 * time.Second
	leaseHits    = 10

	// memoSize bounds the combinations of tier, method, host and path for which a policy caches the
	// matching rules. The interpreter takes long to match rules. With 0, which also turns off policy.Recall,
	// a request with a cached API key takes 1.6 times the processor time, and 1,570 allocations instead of
	// 860.
	memoSize = 16384
)

// program names this program in the registry. Plugins cannot read the version of Traefik.
var program = "Traefik, pg-ratelimit " + host.Version

// newProcess returns a process that closes unused resources after a delay.
func newProcess(delay time.Duration) *process {
	return &process{logged: map[string]string{}, setups: map[string]*setup{}, host: &host.Process{
		Kind: "traefik", Version: program, Delay: delay, LeaseHorizon: leaseHorizon, LeaseHits: leaseHits,
		MemoSize: memoSize, Log: func(line host.Line) { write("", line) }, Connect: connect,
	}}
}

// connect implements host.Process.Connect. Errors of pgwire contain no DSN.
func connect(source *host.DataSource) (pgdb.DB, error) {
	db, err := pgwire.Open(source.DSN,
		pgwire.Options{MaxConns: source.MaxConns, Renew: source.Configured.Renew,
			Logger: func(text string) { write("", host.Line{Level: host.Error, Text: text}) }})
	if err != nil {
		return nil, fmt.Errorf("dsn: %w", err)
	}
	return db, nil
}

// logOnce logs a line of a middleware, or of none, unless the last one on its topic has the same text. The
// caller holds the mutex.
func (p *process) logOnce(topic, middleware string, line host.Line) {
	if p.logged[topic] != line.Text {
		p.logged[topic] = line.Text
		write(middleware, line)
	}
}
