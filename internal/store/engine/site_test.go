package engine_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// longTime is a timeout that no test reaches.
const longTime = time.Minute

// without turns the optional work of a store off, so that each hit is one statement.
var without = engine.Options{CleanupProbability: -1, NoRefusals: true}

// site is a database with stores on it.
type site struct {
	t    testing.TB
	dsn  string
	conn *pgx.Conn

	mu       sync.Mutex
	reported []error // by OnError
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{t: t, dsn: cluster.Open(t)}
	s.conn = cluster.Connect(s.t, s.dsn)
	return s
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.conn.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// text returns the only cell of a query.
func (s *site) text(sql string, args ...any) string {
	s.t.Helper()
	var text *string
	if err := s.conn.QueryRow(context.Background(), sql, args...).Scan(&text); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	if text == nil {
		return "NULL"
	}
	return *text
}

// db connects to the database, with settings added to the DSN.
func (s *site) db(settings string) pgdb.DB {
	s.t.Helper()
	dsn := s.dsn
	if settings != "" {
		dsn += "&" + settings
	}
	return drivers.All["pgxdb"](s.t, dsn)
}

// store opens a store.
func (s *site) store(o engine.Options) *engine.Store {
	s.t.Helper()
	return s.storeOn(s.db(""), o)
}

func (s *site) storeOn(db pgdb.DB, o engine.Options) *engine.Store {
	s.t.Helper()
	if o.OnError == nil {
		o.OnError = s.report
	}
	return newStore(s.t, db, o)
}

// proxy opens the store of a proxy.
func (s *site) proxy(db pgdb.DB, o engine.Options, n registry.Node) *store.Store {
	s.t.Helper()
	if o.OnError == nil {
		o.OnError = s.report
	}
	if n.Name == "" {
		n = registry.Node{Name: "n", Epoch: 1}
	}
	return newProxy(s.t, db, o, n)
}

// newChain returns the chain of stores of a Go program on any DB.
func newChain(t testing.TB, db pgdb.DB, o engine.Options) *store.Store {
	t.Helper()
	opened, err := store.Open(db, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return opened
}

// newProxy returns the store of a proxy on any DB.
func newProxy(t testing.TB, db pgdb.DB, o engine.Options, n registry.Node) *store.Store {
	t.Helper()
	opened, err := store.Open(db, o, &n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return opened
}

// counting is a store that counts its calls.
type counting interface {
	ratelimit.Store
	Stats() engine.Stats
	Leases() *lease.Set
}

// report implements OnError of the stores.
func (s *site) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported = append(s.reported, err)
}

// nothingReported fails if a store had a failure in the background.
func (s *site) nothingReported() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reported) > 0 {
		s.t.Errorf("reported: %v", s.reported)
	}
}

// newStore returns a store on any DB.
func newStore(t testing.TB, db pgdb.DB, o engine.Options) *engine.Store {
	t.Helper()
	store, err := engine.New(db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// takeOne decides one hit.
func takeOne(t failer, store ratelimit.Store, h ratelimit.Hit) ratelimit.Decision {
	if t, ok := t.(testing.TB); ok {
		t.Helper()
	}
	d, _, err := tryOne(store, longTime, h)
	if err != nil {
		t.Fatalf("cost %d of %s: %v", h.Cost, h.Limit.Prefix, err)
	}
	return d
}

// failer has the common method of *testing.T and *rapid.T.
type failer interface {
	Fatalf(format string, args ...any)
}

// tryOne decides one hit with a timeout, and returns how long that took.
func tryOne(store ratelimit.Store, timeout time.Duration, h ratelimit.Hit) (ratelimit.Decision, time.Duration,
	error) {
	d := make([]ratelimit.Decision, 1)
	started := time.Now()
	err := store.Take(context.Background(), timeout, []ratelimit.Hit{h}, d)
	return d[0], time.Since(started), err
}

// passes decides a request of several hits, and reports whether all were allowed.
func passes(t testing.TB, store ratelimit.Store, hits ...ratelimit.Hit) bool {
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(context.Background(), longTime, hits, decisions); err != nil {
		t.Errorf("Take: %v", err)
		return false
	}
	return allAllowed(decisions)
}

func allAllowed(decisions []ratelimit.Decision) bool {
	for _, d := range decisions {
		if !d.Allowed {
			return false
		}
	}
	return true
}

// left returns the rest of a hit's quota.
func left(t failer, store ratelimit.Store, h ratelimit.Hit) int64 {
	h.Cost, h.Peek = 1, true
	return takeOne(t, store, h).Remaining
}

// hitOn returns a hit on the only key of a limit with a window of an hour.
func hitOn(prefix string, events int64, durable bool) ratelimit.Hit {
	l := &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: events, Window: time.Hour,
		Durable: durable}
	return ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
}
