package traefikplugin

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
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
	store    ratelimit.Store // nil if the database has the history only
	db       pgdb.DB         // of the store, for the policy; nil in memory
	salt     *edge.Salt
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

	mu    sync.Mutex // guards all that follows
	pools map[edge.StoreSettings]*pool
	said  map[string]string // what the log has of each middleware
}

// shared is the registry of all middlewares.
var shared = newRegistry(10 * time.Second)

func newRegistry(delay time.Duration) *registry {
	return &registry{delay: delay, pools: map[edge.StoreSettings]*pool{}, said: map[string]string{}}
}

// say logs what a middleware has understood, unless the log has it: each reload makes a middleware for each router.
func (r *registry) say(middleware, text string) {
	r.mu.Lock()
	known := r.said[middleware] == text
	r.said[middleware] = text
	r.mu.Unlock()
	if !known {
		inform(text)
	}
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
		p.salt = edge.NewSalt(db)
		p.use = &sharing{forget: func() { delete(r.pools, s) }, close: func() {
			if store == nil {
				db.Close()
				return
			}
			store.Close()
		}}
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

// acquireOn acquires a policy or a history in a database. It is a user of the pool of the database, so that it can end its
// work there when it is closed. what is its kind and its settings. Handlers share it by the pool p, or if p is nil, by that of
// the database. open sets it in its sharing, and returns how to close it.
func (r *registry) acquireOn(database edge.StoreSettings, p *pool, what string, open func(at *pool, s *sharing) (close func(), err error)) (*sharing, error) {
	at, err := r.acquire(database, 0)
	if err != nil {
		return nil, err
	}
	defer r.release(at, at.use)
	if p == nil {
		p = at
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := p.shared[what]
	if s == nil {
		s = &sharing{forget: func() { delete(p.shared, what) }}
		end, err := open(at, s)
		if err != nil {
			return nil, err
		}
		s.close = func() {
			end()
			r.release(at, at.use)
		}
		at.use.add()
		p.shared[what] = s
	}
	s.add()
	return s, nil
}

// acquirePolicy acquires a policy for limits in a pool.
func (r *registry) acquirePolicy(p *pool, t policyUse) (*sharing, error) {
	return r.acquireOn(t.database, p, fmt.Sprintf("policy %#v %#v", t.settings, t.database), func(at *pool, s *sharing) (func(), error) {
		opened, err := edge.OpenProxyPolicy(p.store, at.store, at.db, t.settings, edge.ProxyPolicyOptions{
			Node: at.settings.NodeNameOf(proxyKind), AutoMigrate: at.settings.AutoMigrate, Remember: remembered, OnError: p.logger.failure,
		})
		if err != nil {
			return nil, err
		}
		opened.Prepare()
		s.policy = opened
		return func() { opened.Close() }, nil
	})
}

// acquireHistory acquires a history.
func (r *registry) acquireHistory(recorded *recordSettings) (*sharing, error) {
	return r.acquireOn(recorded.database, nil, fmt.Sprintf("history %#v", recorded.settings), func(at *pool, s *sharing) (func(), error) {
		opened, err := edge.OpenHistory(at.db, recorded.settings, edge.HistoryOptions{
			Node: at.settings.NodeNameOf(proxyKind), Region: at.settings.Region, AutoMigrate: at.settings.AutoMigrate, OnError: func(err error) { at.logger.log(err.Error()) },
		})
		if err != nil {
			return nil, err
		}
		opened.Prepare()
		s.writer = opened
		return func() { opened.Close() }, nil
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
		q = newRequestQueue(r, p, timeout)
		p.queues[timeout] = q
	}
	return q
}

// share has all middlewares on a pool use one limit of those that are equal: two limits
// are then the same if their addresses are.
func (r *registry) share(p *pool, z *edge.Zone) {
	r.mu.Lock()
	defer r.mu.Unlock()
	z.Hit.Limit = sharedLimit(p, z.Hit.Limit)
	for value, limit := range z.ByValue {
		z.ByValue[value] = sharedLimit(p, limit)
	}
}

// sharedLimit is the limit of a pool that is equal to another. The caller holds the registry's mutex.
func sharedLimit(p *pool, limit *ratelimit.Limit) *ratelimit.Limit {
	l := p.limits[*limit]
	if l == nil {
		l = limit
		p.limits[*l] = l
	}
	return l
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
func openStore(s edge.StoreSettings, l *logger) (ratelimit.Store, pgdb.DB, error) {
	if s.DSN == edge.MemoryDSN {
		inform(edge.MemoryNotice)
	}
	s.LeaseHorizon = leaseHorizon
	store, db, err := edge.OpenStore(s, func(dsn string, maxConns int) (pgdb.DB, error) {
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
