package traefikplugin

import (
	"fmt"
	"log"
	"strconv"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// poolKey is what makes two middlewares share a pool.
type poolKey struct {
	dsn      string
	maxConns int
	migrate  bool
	cleanup  float64
	blocked  int
}

// pool is a store and the count of its users.
type pool struct {
	key    poolKey
	store  ratelimit.Store
	logger *logger

	// Guarded by the registry's mutex.
	users     int
	longest   time.Duration // the longest timeout of any user
	entrances map[time.Duration]*entrance
	gone      *time.Timer // closes the store; nil while there are users
}

// registry holds the pools of this interpreter, which is one a plugin and
// Traefik process. Traefik makes every middleware anew at each reload, for each
// router, and tells the old ones by their context only; so pools are counted,
// and outlive their last user by the linger.
type registry struct {
	linger time.Duration

	mu    sync.Mutex
	pools map[poolKey]*pool
}

// shared is the registry of all middlewares.
var shared = newRegistry(10 * time.Second)

func newRegistry(linger time.Duration) *registry {
	return &registry{linger: linger, pools: map[poolKey]*pool{}}
}

// acquire returns the pool of a key, opened if need be, without touching the
// network. timeout is the user's. Each acquire is followed by one release.
func (r *registry) acquire(k poolKey, timeout time.Duration) (*pool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[k]
	if p == nil {
		p = &pool{key: k, logger: &logger{}, entrances: map[time.Duration]*entrance{}}
		store, err := openStore(k, p.logger)
		if err != nil {
			return nil, err
		}
		p.store = store
		r.pools[k] = p
	}
	if p.gone != nil {
		p.gone.Stop()
		p.gone = nil
	}
	if timeout > p.longest {
		p.longest = timeout
	}
	p.users++
	return p, nil
}

// entranceOf returns a pool's entrance for requests of a timeout; nil if its store
// decides at once.
func (r *registry) entranceOf(p *pool, timeout time.Duration) *entrance {
	store, ok := p.store.(*ratelimit.Postgres)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := p.entrances[timeout]
	if e == nil {
		e = newEntrance(store, timeout)
		p.entrances[timeout] = e
	}
	return e
}

// release gives a pool back. The last user's going starts the linger, which is
// long enough for requests that still wait for a decision.
func (r *registry) release(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.users--
	if p.users > 0 {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(r.linger+p.longest, func() {
		defer p.logger.recovered()
		r.mu.Lock()
		if p.gone != timer {
			r.mu.Unlock()
			return // somebody came, and perhaps went, meanwhile
		}
		delete(r.pools, p.key)
		r.mu.Unlock()
		p.store.Close()
	})
	p.gone = timer
}

const (
	// memoryDSN counts in this process.
	memoryDSN = "memory"

	// defaultFlights is how many connections a store uses at once for decisions,
	// unless it may have fewer.
	defaultFlights = 4
)

// openStore opens what a key names.
func openStore(k poolKey, l *logger) (ratelimit.Store, error) {
	if k.dsn == memoryDSN {
		fmt.Println("pg_ratelimit: dsn is memory: limits are counted in this process only")
		return ratelimit.NewMemory(0, nil), nil
	}
	db, err := pgwire.Open(k.dsn, pgwire.Options{MaxConns: k.maxConns, Logger: l.note})
	if err != nil {
		return nil, fmt.Errorf("dsn: %w", err)
	}
	o := ratelimit.PostgresOptions{DisableMigration: !k.migrate, CleanupProbability: k.cleanup, MaxBlockedKeys: k.blocked, Report: l.failure}
	if k.cleanup == 0 {
		o.CleanupProbability = -1
	}
	if k.maxConns > 0 && k.maxConns < defaultFlights {
		o.Flights = k.maxConns
	}
	store := ratelimit.NewPostgres(db, o)
	store.Prepare()
	return store, nil
}

// logger writes to where Traefik logs errors, failures about one line a second.
// It never writes a key or a DSN.
type logger struct {
	sampler edge.Sampler
}

// note logs what an operator should know. In Traefik, log.Writer is Traefik's
// log at ERROR; os.Stderr is not.
func (l *logger) note(message string) {
	fmt.Fprintln(log.Writer(), "pg_ratelimit: "+message)
}

// failure logs an error, unless there was one just now.
func (l *logger) failure(err error) {
	dropped, ok := l.sampler.Next(time.Now())
	switch {
	case !ok:
	case dropped > 0:
		l.note(err.Error() + " (and " + strconv.FormatInt(dropped, 10) + " more failures since the last line)")
	default:
		l.note(err.Error())
	}
}

// recovered ends a panic, which in a goroutine of a plugin would end Traefik.
// It is to be deferred.
func (l *logger) recovered() {
	if p := recover(); p != nil {
		l.failure(fmt.Errorf("panic: %v", p))
	}
}
