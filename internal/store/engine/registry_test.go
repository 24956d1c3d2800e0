package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// nodesSQL formats the rows of the registry that have not ended.
const nodesSQL = `SELECT coalesce(string_agg(concat_ws(' ', node, epoch, report->>'version',
	report->>'applied', (SELECT string_agg(p, ';') FROM json_array_elements_text(report->'problems') p)),
	', ' ORDER BY node, epoch), '') FROM rate_limit_nodes WHERE ended IS NULL`

// awaitNodes waits until the registry has the rows of want, in the format of nodesSQL.
func (s *testDB) awaitNodes(want string) {
	s.t.Helper()
	s.awaitText("SELECT count(*)::text FROM pg_attribute WHERE attrelid = to_regclass('rate_limit_nodes') "+
		"AND attname = 'ended'", "1")
	s.awaitText(nodesSQL, want)
}

// awaitText waits until the only cell of a query's result is want.
func (s *testDB) awaitText(sql, want string) {
	s.t.Helper()
	got := ""
	defer func() {
		if got != want {
			s.t.Logf("%s: got %q, want %q", sql, got, want)
		}
	}()
	await.Within(s.t, testTimeout, want, func() bool { got = s.queryText(sql); return got == want })
}

// openRole creates the tables, creates a role that may use tables, and opens a DB as this role.
func (s *testDB) openRole(role, tables string) pgdb.DB {
	s.t.Helper()
	_, err := s.conn.PgConn().Exec(s.t.Context(), engine.TableSQL+"; CREATE ROLE "+role+
		"; GRANT SELECT, INSERT, UPDATE, DELETE ON "+tables+" TO "+role).ReadAll()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.exec("DROP OWNED BY " + role); s.exec("DROP ROLE " + role) })
	return s.openDB("options=-c%20role%3D" + role)
}

// openNode opens the store of a process named n over a driver.
func (s *testDB) openNode(driver string, epoch int64) (*store.Store, *registry.Node) {
	n := registry.Join("n", fmt.Sprint(s.dsn, " ", epoch), "v1", "")
	if n.Epoch != epoch {
		n.Epoch = epoch
	}
	opened := s.openProxy(drivers.Patient(drivers.All[driver](s.t, s.dsn)), engine.Options{}, n)
	opened.Prepare()
	return opened, n
}

// A proxy is in the registry from the start of its first store to the end of its last one, which
// creates the tables.
func TestProxyIsRegistered(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"an empty database": "",
		"all tables":        engine.TableSQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestDB(t)
			if _, err := s.conn.PgConn().Exec(t.Context(), before).ReadAll(); err != nil {
				t.Fatal(err)
			}
			store, node := s.openNode("pgwire", 7)
			s.awaitNodes("n 7 v1")
			node.SetApplied("12:12:", "1", []string{"rule a: wrong", "rule b: wrong"})
			s.awaitNodes("n 7 v1 12:12: rule a: wrong;rule b: wrong")
			// Another store of the process has no policy, and keeps the policy's part of the row.
			other, _ := s.openNode("pgxdb", 7)
			s.exec("UPDATE rate_limit_nodes SET report = '{}' WHERE node = 'n'")
			s.awaitNodes("n 7 v1 12:12: rule a: wrong;rule b: wrong")
			other.Close()
			s.awaitNodes("n 7 v1 12:12: rule a: wrong;rule b: wrong")
			store.Close()
			s.awaitNodes("")
			s.requireNoReports()
		})
	}
}

// Each proxy writes its row of the registry every 3 seconds, so the row must stay small with any number of
// limits and any names. The row lists only the busiest limits, and the table is unlogged.
func TestRegistryRowIsSmall(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	n := registry.Join(strings.Repeat("n", 200), s.dsn, "v1.2.3", "eu-central-1")
	for i := range 30_000 {
		*n.Leased(fmt.Sprint(strings.Repeat("p", 150), i)) = int64(i%10_000) * 1e9
	}
	registry.Count(n, registry.Counted{Kind: outcome.Failed, Passed: true})
	if _, err := s.conn.PgConn().Exec(t.Context(), engine.TableSQL).ReadAll(); err != nil {
		t.Fatal(err)
	}
	s.openProxy(s.openDB(""), engine.Options{}, n).Prepare()
	problems := make([]string, 1000)
	for i := range problems {
		problems[i] = fmt.Sprintf("rule %d: limit: %s: must be less", i, strings.Repeat("ü", i))
	}
	n.SetApplied("1:1:", "1", problems)
	s.awaitText("SELECT coalesce(max(problems[cardinality(problems)]), '') FROM rate_limit_proxies",
		"rule 10: l … (1000 in all)")
	n.SetApplied("1:1:", "1", []string{strings.Repeat("ü", 1000), "b"})
	s.awaitText("SELECT coalesce(max(problems[1]), '') FROM rate_limit_proxies",
		strings.Repeat("ü", 200)+" … (2 in all)")
	const want = "t 49995000000000000 9999000000000 1 0 t u"
	got := s.queryText("SELECT concat_ws(' ', pg_column_size(n.*) <= 1536, p.admitted, " +
		"n.report->'busiest'->(repeat('p', 150) || 9999)->>0, p.open_passed, p.open_refused, " +
		"p.open_from = p.open_until, c.relpersistence) " +
		"FROM rate_limit_proxies p, rate_limit_nodes n " +
		"JOIN pg_class c ON c.oid = n.tableoid")
	check.Equal(t, "small, admitted, busiest, open, persistence", got, want)
}

// Two processes with the same name have two rows. When one of them has ended, the next heartbeat of the other
// deletes the row of the ended process, and the rows of processes that vanished more than a day ago.
func TestHeartbeatDeletesEndedRowOfSameName(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	first, _ := s.openNode("pgxdb", 1)
	s.awaitNodes("n 1 v1")
	s.exec("INSERT INTO rate_limit_nodes (node, epoch, seen) VALUES " +
		"('vanished', 9, now() - interval '25 h'), ('away', 9, now() - interval '23 h')")
	s.openNode("pgxdb", 2)
	s.awaitNodes("away 9, n 1 v1, n 2 v1")
	s.awaitText("SELECT string_agg(node, ' ' ORDER BY node) FROM rate_limit_proxies WHERE live", "n n#2")
	first.Close()
	s.awaitText("SELECT count(*)::text FROM rate_limit_nodes WHERE node = 'n'", "1")
	s.awaitNodes("away 9, n 2 v1")
	s.requireNoReports()
}

// A proxy counts with a role that may use only the two tables of counts, and reports once that the role
// cannot use the registry.
func TestRegistryWithoutPrivileges(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	role := "counts_" + s.queryText("SELECT current_database()")
	s.exec("REVOKE CREATE ON SCHEMA public FROM public")
	db := s.openRole(role, "rate_limit_ephemeral, rate_limit_durable")
	store := s.openProxy(db, engine.Options{}, nil)
	store.Prepare()
	reports := func() []error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.reported
	}
	await.Within(t, testTimeout, "the report", func() bool { return len(reports()) > 0 })
	if !takeOne(t, store, hitOn("p", 5, false)).Allowed {
		t.Error("a hit was refused, want it allowed")
	}
	decisions := make([]ratelimit.Decision, 1)
	if !store.TakeLocal(ratelimit.ErrUnavailable, []ratelimit.Hit{hitOn("p", 5, true)}, decisions) ||
		!store.Local().On {
		t.Errorf("TakeLocal: got %+v, Local().On %v, want a local decision", decisions,
			store.Local().On)
	}
	await.Within(t, testTimeout, "exact limits", func() bool { return !store.Local().On })
	store.Close()
	errs := reports()
	text := fmt.Sprint(errs)
	if len(errs) != 1 || !strings.Contains(text, "the registry of proxies: ") ||
		!strings.Contains(text, "permission denied") {
		t.Errorf("reported: %s, want one error for the registry", text)
	}
}

// If the role of a proxy may not use a table of counts, the proxy reports the missing grant once in its log,
// and in the registry until the role gets it.
func TestProxyReportsMissingGrant(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	role := "decides_nothing_" + s.queryText("SELECT current_database()")
	db := s.openRole(role, "rate_limit_durable")
	s.exec("GRANT EXECUTE ON FUNCTION rate_limit_heartbeat TO " + role)
	store := s.openProxy(db, engine.Options{DisableMigration: true}, registry.Join("n", s.dsn, "", "eu"))
	store.Prepare()
	const rowsSQL = "SELECT coalesce(string_agg(concat_ws(' ', node, report->>'region', " +
		"report->>'cannot'), ', '), '') FROM rate_limit_nodes"
	grant := "SELECT rate_limit_grant('" + role + "', 'proxy')"
	s.awaitText(rowsSQL, "n eu "+grant)
	s.exec(grant)
	s.awaitText(rowsSQL, "n eu")
	store.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reported) != 1 || !strings.Contains(s.reported[0].Error(), grant) {
		t.Errorf("reported: %v, want %s once", s.reported, grant)
	}
	s.awaitText("SELECT count(*)::text FROM rate_limit_nodes n WHERE n.ended IS NOT NULL AND NOT "+
		schema.NodeIsLive, "1")
}

// A settlement waits while row level security hides the ledger.
func TestSettlementOutlivesRowSecurity(t *testing.T) {
	s, l := newTestDB(t), budget(100)
	role := "p_" + s.queryText("SELECT current_database()")
	db := s.openRole(role, "rate_limit_durable")
	s.exec("SELECT rate_limit_grant('" + role + "', 'proxy')")
	store := s.openEngineOn(db, engine.Options{CleanupProbability: -1})
	slot, _ := reserve(t, store, l, 9)
	s.exec("ALTER TABLE rate_limit_ledger ENABLE ROW LEVEL SECURITY")
	store.Ledger().Settle(bill(1, l, 7, slot))
	await.Within(t, testTimeout, "the report", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(fmt.Sprint(s.reported), pg.RowSecurityHint)
	})
	s.exec("ALTER TABLE rate_limit_ledger DISABLE ROW LEVEL SECURITY")
	awaitSettled(t, store)
	check.Equal(t, "used and held", s.usedAndHeld(), "7 0")
}

// lostDB is a DB that can lose its server.
type lostDB struct {
	pgdb.DB
	mu        sync.Mutex
	state     dbState
	swallowed atomic.Int64 // the number of charges with a lost result
}

// dbState names the effect of a lostDB on statements.
type dbState string

const (
	dbAnswers      dbState = ""
	dbLost         dbState = "statements fail"
	dbLosesAnswers dbState = "results of durable charges are lost"
)

func (d *lostDB) set(state dbState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = state
}

func (d *lostDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	charges := func(s *pgdb.Statement) bool {
		m := engine.Meanings()[s.SQL]
		return m.Kind == "take" && m.Durable
	}
	if state == dbLosesAnswers && slices.ContainsFunc(statements, charges) {
		_ = d.DB.Run(ctx, timeout, statements)
		d.swallowed.Add(1)
		state = dbLost
	}
	if state == dbLost {
		return pgdb.ErrConnectionLost
	}
	return d.DB.Run(ctx, timeout, statements)
}
