package traefikplugin

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// pool is a store that middlewares with the same settings share.
type pool struct {
	settings edge.StoreSettings
	store    ratelimit.Store
	db       postgres.DB // of the store, for the policy; nil in memory
	logger   *logger

	// Guarded by the registry's mutex.
	users    int
	longest  time.Duration                   // the longest timeout of any user
	queues   map[time.Duration]*requestQueue // by timeout
	limits   map[ratelimit.Limit]*ratelimit.Limit
	policies map[edge.PolicySettings]*sharedPolicy
	closing  *time.Timer // closes the store; nil while there are users
	warned   bool        // that a DSN in the configuration holds a password

	histories map[edge.HistorySettings]*sharedHistory
}

// registry holds the pools of this interpreter. A Traefik process has one interpreter for
// each plugin. At each reload, Traefik makes a new middleware for each router, and ends the
// contexts of the old middlewares. The registry counts the users of a pool, and closes a pool
// that has had no user for the delay.
type registry struct {
	delay   time.Duration
	watched int32 // 1 once flushAtShutdown has found a server; atomic

	mu    sync.Mutex
	pools map[edge.StoreSettings]*pool
}

// shared is the registry of all middlewares.
var shared = newRegistry(10 * time.Second)

func newRegistry(delay time.Duration) *registry {
	return &registry{delay: delay, pools: map[edge.StoreSettings]*pool{}}
}

// acquire returns the pool for resolved settings, and opens it if there is none. It does not
// wait for the network. timeout is the timeout of the new user. One release must follow each
// acquire.
func (r *registry) acquire(s edge.StoreSettings, timeout time.Duration) (*pool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[s]
	if p == nil {
		p = &pool{
			settings: s, logger: &logger{}, queues: map[time.Duration]*requestQueue{},
			limits: map[ratelimit.Limit]*ratelimit.Limit{}, policies: map[edge.PolicySettings]*sharedPolicy{},
			histories: map[edge.HistorySettings]*sharedHistory{},
		}
		store, db, err := openStore(s, p.logger)
		if err != nil {
			return nil, err
		}
		p.store = store
		p.db = db
		r.pools[s] = p
	}
	if p.closing != nil {
		p.closing.Stop()
		p.closing = nil
	}
	if timeout > p.longest {
		p.longest = timeout
	}
	p.users++
	return p, nil
}

// queueOf returns a pool's queue for requests with that timeout, or nil if its store
// decides at once.
func (r *registry) queueOf(p *pool, timeout time.Duration) *requestQueue {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := p.queues[timeout]
	if q == nil {
		q = newRequestQueue(p.store, timeout)
		p.queues[timeout] = q
	}
	return q
}

// shareLimits has all middlewares on a pool use one limit of those that are equal: two limits
// are then the same if their addresses are.
func (r *registry) shareLimits(p *pool, hits []ratelimit.Hit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range hits {
		l := p.limits[*hits[i].Limit]
		if l == nil {
			l = hits[i].Limit
			p.limits[*l] = l
		}
		hits[i].Limit = l
	}
}

// warnOfPassword warns once for each pool.
func (r *registry) warnOfPassword(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.warned {
		p.warned = true
		p.logger.log(edge.PasswordWarning)
	}
}

// release ends the use of a pool. After the last user, the pool stays open for the delay
// and the longest timeout: for requests that wait for a decision, and for the middlewares
// of a reload.
func (r *registry) release(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.users--
	if p.users > 0 {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(r.delay+p.longest, func() {
		defer p.logger.recovered()
		r.mu.Lock()
		if p.closing != timer {
			r.mu.Unlock()
			return // the pool was acquired meanwhile
		}
		delete(r.pools, p.settings)
		r.mu.Unlock()
		p.store.Close()
	})
	p.closing = timer
}

// leaseHorizon is for how long leases should last. A renewal takes far more time interpreted than
// compiled, so leases last longer than the default.
const leaseHorizon = 4 * time.Second

// proxyKind is the end of the name of this proxy, if the configuration has no nodeName.
const proxyKind = "traefik"

// openStore opens the store of a pool.
func openStore(s edge.StoreSettings, l *logger) (ratelimit.Store, postgres.DB, error) {
	if s.DSN == edge.MemoryDSN {
		fmt.Println("pg_ratelimit: " + edge.MemoryNotice)
	}
	s.LeaseHorizon = leaseHorizon
	store, db, err := edge.OpenStore(s, func(dsn string, maxConns int) (postgres.DB, error) {
		db, err := pgwire.Open(dsn, pgwire.Options{MaxConns: maxConns, Logger: l.log})
		if err != nil {
			return nil, fmt.Errorf("dsn: %w", err)
		}
		return db, nil
	}, edge.NodeOptions{Kind: proxyKind, Version: "Traefik", Notice: l.log}, l.failure)
	if err != nil {
		return nil, nil, err
	}
	edge.Prepare(store)
	return store, db, nil
}
