package traefikplugin

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// sharing is a pool, or a policy or a history on a pool, that middlewares share. users and closing are
// guarded by the registry's mutex. All else does not change.
type sharing struct {
	users   int
	closing *time.Timer // closes what is shared; nil while there are users
	forget  func()      // removes it from the registry
	close   func()

	policy *edge.ProxyPolicy // nil if it is none
	writer *history.Writer   // of a history; nil if it is none
}

// pool is a store that middlewares with the same settings share.
type pool struct {
	settings edge.StoreSettings
	store    ratelimit.Store
	db       postgres.DB // of the store, for the policy; nil in memory
	logger   *logger

	// Guarded by the registry's mutex.
	use     *sharing
	longest time.Duration                   // the longest timeout of any user
	queues  map[time.Duration]*requestQueue // by timeout
	limits  map[ratelimit.Limit]*ratelimit.Limit
	shared  map[string]*sharing // policies and histories, by kind and settings
	warned  bool                // that a DSN in the configuration holds a password
}

// registry holds the pools of this interpreter. A Traefik process has one interpreter for
// each plugin. At each reload, Traefik makes a new middleware for each router, and ends the
// contexts of the old middlewares. The registry counts the users of a pool, and of the policies and
// the histories on it. It closes what has had no user for the delay.
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
			limits: map[ratelimit.Limit]*ratelimit.Limit{}, shared: map[string]*sharing{},
		}
		store, db, err := openStore(s, p.logger)
		if err != nil {
			return nil, err
		}
		p.store = store
		p.db = db
		p.use = &sharing{forget: func() { delete(r.pools, s) }, close: func() { store.Close() }}
		r.pools[s] = p
	}
	if timeout > p.longest {
		p.longest = timeout
	}
	p.use.add()
	return p, nil
}

// remembered is for how many combinations of tier, method, host and path a policy remembers
// which rules match: an interpreter takes long to find out. With 0, which turns off policy.Recall too, a
// request of a known API key takes 1.6 times the processor time, and 1,570 allocations instead of 860.
const remembered = 16384

// acquireShared is acquire for a policy or a history on a pool. what is its kind and its settings. open
// sets the rest of its sharing.
func (r *registry) acquireShared(p *pool, what string, open func(s *sharing) error) (*sharing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := p.shared[what]
	if s == nil {
		s = &sharing{forget: func() { delete(p.shared, what) }}
		if err := open(s); err != nil {
			return nil, err
		}
		p.shared[what] = s
	}
	s.add()
	return s, nil
}

// acquirePolicy acquires the policy in the database of a pool.
func (r *registry) acquirePolicy(p *pool, settings edge.PolicySettings) (*sharing, error) {
	return r.acquireShared(p, fmt.Sprintf("policy %#v", settings), func(s *sharing) error {
		opened, err := edge.OpenProxyPolicy(p.store, p.db, settings, edge.ProxyPolicyOptions{
			Node: p.settings.NodeNameOf(proxyKind), AutoMigrate: p.settings.AutoMigrate, Remember: remembered, OnError: p.logger.failure,
		})
		if err != nil {
			return err
		}
		opened.Prepare()
		s.policy = opened
		s.close = func() { opened.Close() }
		return nil
	})
}

// acquireHistory acquires the history in the database of a pool. A history is a user of its pool, so
// that it can write what is pending when it is closed.
func (r *registry) acquireHistory(p *pool, settings edge.HistorySettings) (*sharing, error) {
	return r.acquireShared(p, fmt.Sprintf("history %#v", settings), func(s *sharing) error {
		opened, err := edge.OpenHistory(p.db, settings, edge.HistoryOptions{
			Store: p.store, Node: p.settings.NodeNameOf(proxyKind), AutoMigrate: p.settings.AutoMigrate, OnError: func(err error) { p.logger.log(err.Error()) },
		})
		if err != nil {
			return err
		}
		opened.Prepare()
		s.writer = opened
		s.close = func() {
			opened.Close()
			r.release(p, p.use)
		}
		p.use.add()
		return nil
	})
}

// add adds a user. The caller holds the registry's mutex.
func (s *sharing) add() {
	if s.closing != nil {
		s.closing.Stop()
		s.closing = nil
	}
	s.users++
}

// release ends the use of a pool, or of something on the pool. After the last user, what was shared
// stays open for the delay and the longest timeout: for requests that wait for a decision, and for the
// middlewares of a reload.
func (r *registry) release(p *pool, s *sharing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.users--
	if s.users > 0 {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(r.delay+p.longest, func() {
		defer p.logger.recovered()
		r.mu.Lock()
		unused := s.closing == timer // else it was acquired meanwhile
		if unused {
			s.forget()
		}
		r.mu.Unlock()
		if unused {
			s.close()
		}
	})
	s.closing = timer
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

// leaseHorizon is for how long leases should last. A renewal takes far more time interpreted than
// compiled, so leases last longer than the default.
const leaseHorizon = 4 * time.Second

// proxyKind is the end of the name of this proxy, if the configuration has no nodeName.
const proxyKind = "traefik"

// program names this program. Traefik does not tell plugins its version.
var program = edge.Program("Traefik", edge.Version)

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
	}, edge.NodeOptions{Kind: proxyKind, Version: program, Notice: l.log}, l.failure)
	if err != nil {
		return nil, nil, err
	}
	edge.Prepare(store)
	return store, db, nil
}
