package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// testTimeout is a timeout that no test reaches.
const testTimeout = time.Minute

// bareOptions disable the optional work of an engine, so that each hit is one statement.
var bareOptions = engine.Options{CleanupProbability: -1, DisableRememberedRefusals: true}

// testDB is the database of a test, with helpers that open stores on it.
type testDB struct {
	t    testing.TB
	dsn  string
	conn *pgx.Conn

	mu       sync.Mutex
	reported []error // the errors passed to OnError
}

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	s := &testDB{t: t, dsn: cluster.Open(t)}
	s.conn = cluster.Connect(s.t, s.dsn)
	return s
}

func (s *testDB) exec(sql string, args ...any) {
	s.t.Helper()
	if err := cluster.Exec(context.Background(), s.conn, sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// queryText returns the single cell of a query's result, or "NULL".
func (s *testDB) queryText(sql string) string {
	s.t.Helper()
	var text *string
	if err := s.conn.QueryRow(s.t.Context(), sql).Scan(&text); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	if text == nil {
		return "NULL"
	}
	return *text
}

// openDB opens a DB on the database, with settings added to the DSN.
func (s *testDB) openDB(settings string) pgdb.DB {
	s.t.Helper()
	dsn := s.dsn
	if settings != "" {
		dsn += "&" + settings
	}
	return drivers.All["pgxdb"](s.t, dsn)
}

// openEngine opens an engine over pgxdb. It passes its errors to report unless o has an OnError.
func (s *testDB) openEngine(o engine.Options) *engine.Engine {
	s.t.Helper()
	return s.openEngineOn(s.openDB(""), o)
}

func (s *testDB) openEngineOn(db pgdb.DB, o engine.Options) *engine.Engine {
	s.t.Helper()
	if o.OnError == nil {
		o.OnError = s.report
	}
	return newEngine(s.t, db, o)
}

// openProxy opens the store of a proxy, which passes its errors to report. If n is nil, its name is n.
func (s *testDB) openProxy(db pgdb.DB, o engine.Options, n *registry.Node) *store.Store {
	s.t.Helper()
	if o.OnError == nil {
		o.OnError = s.report
	}
	if n == nil {
		n = &registry.Node{Name: "n", Epoch: 1}
	}
	return openStore(s.t, db, o, n)
}

// openStore opens a store on any DB, for a proxy, or for a Go program if node is nil.
func openStore(t testing.TB, db pgdb.DB, o engine.Options, node *registry.Node) *store.Store {
	t.Helper()
	opened, err := store.Open(db, o, node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return opened
}

// report implements OnError of the stores.
func (s *testDB) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported = append(s.reported, err)
}

// requireNoReports fails the test if a store reported an error.
func (s *testDB) requireNoReports() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reported) > 0 {
		s.t.Errorf("reported: %v, want nothing", s.reported)
	}
}

// newEngine returns an engine on any DB.
func newEngine(t testing.TB, db pgdb.DB, o engine.Options) *engine.Engine {
	t.Helper()
	store, err := engine.New(db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// takeOne takes one hit, and fails the test unless it is decided.
func takeOne(t failer, store ratelimit.Store, h ratelimit.Hit) ratelimit.Decision {
	if t, ok := t.(testing.TB); ok {
		t.Helper()
	}
	d, _, err := tryOne(store, testTimeout, h)
	if err != nil {
		t.Fatalf("cost %d of %s: %v", h.Cost, h.Limit.Prefix, err)
	}
	return d
}

// failer is the common interface of *testing.T and *rapid.T.
type failer interface {
	Fatalf(format string, args ...any)
}

// tryOne takes one hit with a timeout, and returns the decision, the duration and the error.
func tryOne(store ratelimit.Store, timeout time.Duration, h ratelimit.Hit) (ratelimit.Decision, time.Duration,
	error) {
	d := make([]ratelimit.Decision, 1)
	start := time.Now()
	err := store.Take(context.Background(), timeout, []ratelimit.Hit{h}, d)
	return d[0], time.Since(start), err
}

// takeAll takes a request of several hits, and reports whether all are allowed.
func takeAll(t testing.TB, store ratelimit.Store, hits ...ratelimit.Hit) bool {
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(t.Context(), testTimeout, hits, decisions); err != nil {
		t.Errorf("Take: %v", err)
		return false
	}
	return allAllowed(decisions)
}

// outcomes describes decisions, as in "allowed 2 of 5, refused 0 of 3, undecided".
func outcomes(decisions ...ratelimit.Decision) string {
	var texts []string
	for _, d := range decisions {
		text := "refused"
		if d.Allowed {
			text = "allowed"
		}
		if text += fmt.Sprintf(" %d of %d", d.Remaining, d.Quota); d.Source == ratelimit.Undecided {
			text = "undecided"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func allAllowed(decisions []ratelimit.Decision) bool {
	for _, d := range decisions {
		if !d.Allowed {
			return false
		}
	}
	return true
}

// remaining returns the remaining units of a hit's quota.
func remaining(t failer, store ratelimit.Store, h ratelimit.Hit) int64 {
	h.Cost, h.Peek = 1, true
	return takeOne(t, store, h).Remaining
}

// hitOn returns a hit on the key k of a limit with a window of an hour.
func hitOn(prefix string, events int64, durable bool) ratelimit.Hit {
	l := &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: events, Window: time.Hour,
		Durable: durable}
	return ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
}
