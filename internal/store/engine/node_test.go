package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// nodesSQL is the registry of proxies, in one text.
const nodesSQL = `SELECT coalesce(string_agg(concat_ws(' ', node, epoch, report->>'version',
	report->>'applied_seq', (SELECT string_agg(p, ';') FROM json_array_elements_text(report->'problems') p)),
	', ' ORDER BY node, epoch), '') FROM rate_limit_nodes WHERE ended IS NULL`

func (s *site) wantNodes(want string) {
	s.t.Helper()
	await.Within(s.t, longTime, "the tables of the registry", func() bool {
		return s.text("SELECT count(*)::text FROM pg_attribute WHERE attrelid = "+
			"to_regclass('rate_limit_nodes') AND attname = 'ended'") == "1"
	})
	got := ""
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the registry has %q", got)
		}
	}()
	await.Within(s.t, longTime, "the registry to have "+want,
		func() bool { got = s.text(nodesSQL); return got == want })
}

// node opens a store of the process n, over one of the drivers.
func (s *site) node(driver string, epoch int64) *store.Store {
	n := registry.Join(fmt.Sprint(epoch), s.dsn)
	n.Name, n.Version, n.Epoch = "n", "v1", epoch
	opened := s.proxy(drivers.All[driver](s.t, s.dsn), engine.Options{}, *n)
	opened.Prepare()
	return opened
}

// A proxy with any limit is in the registry from its start to its end, on every server. The tables
// may be those of counts alone.
func TestAProxyIsInTheRegistry(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"an empty database":    "",
		"the tables of counts": engine.TableSQL + "DROP TABLE rate_limit_nodes CASCADE",
	} {
		for driver := range drivers.All {
			t.Run(name+", "+driver, func(t *testing.T) {
				s := newSite(t)
				if _, err := s.conn.PgConn().Exec(context.Background(), before).ReadAll(); err != nil {
					t.Fatal(err)
				}
				store := s.node(driver, 7)
				s.wantNodes("n 7 v1")
				store.SetApplied(12, "1", []string{"rule a: wrong", "rule b: wrong"})
				s.wantNodes("n 7 v1 12 rule a: wrong;rule b: wrong")
				// Another store of the process has no policy, and takes nothing away.
				other := s.node("pgxdb", 7)
				s.exec("UPDATE rate_limit_nodes SET report = '{}' WHERE node = 'n'")
				s.wantNodes("n 7 v1 12 rule a: wrong;rule b: wrong")
				other.Close()
				store.Close()
				s.wantNodes("")
				s.nothingReported()
			})
		}
	}
}

// A row stays small, because each proxy writes it every 3 seconds. It is not in the WAL.
func TestARowOfTheRegistryIsSmall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := registry.Join(strings.Repeat("n", 200), s.dsn)
	n.Version, n.Region = "v1.2.3", "eu-central-1"
	for i := range 20 {
		n.Report.Of(fmt.Sprint("a limit ", i)).Leased = 5e13
	}
	n.Report.Undecided()
	if _, err := s.conn.PgConn().Exec(context.Background(), engine.TableSQL).ReadAll(); err != nil {
		t.Fatal(err)
	}
	store := s.proxy(s.db(""), engine.Options{}, *n)
	store.Prepare()
	problems := make([]string, 1000)
	for i := range problems {
		problems[i] = fmt.Sprintf("rule %d: limit: %s: must be less", i, strings.Repeat("ü", i))
	}
	store.SetApplied(1, "1", problems)
	await.Within(t, longTime, "the problems", func() bool {
		return s.text("SELECT coalesce(max(problems[cardinality(problems)]), '') FROM rate_limit_proxies") ==
			"and 990 more"
	})
	store.SetApplied(1, "1", []string{strings.Repeat("ü", 1000), "b"})
	await.Within(t, longTime, "the problems", func() bool {
		return s.text("SELECT coalesce(max(problems[1]), '') FROM rate_limit_proxies") == strings.Repeat("ü",
			200)+" …"
	})
	const want = "t 1000000000000000 and 1 more u"
	if got := s.text("SELECT concat_ws(' ', pg_column_size(n.*) <= 1536, p.admitted, p.problems[2], " +
		"c.relpersistence) FROM rate_limit_proxies p, rate_limit_nodes n " +
		"JOIN pg_class c ON c.oid = n.tableoid"); got != want {
		t.Errorf("the row is not small: %s (%s bytes)", got,
			s.text("SELECT pg_column_size(n.*) FROM rate_limit_nodes n"))
	}
}

// Two processes of one name have two rows. The row of one that has ended goes with the next heartbeat of the
// other, and those of processes that vanished go after a day.
func TestTwoProcessesOfOneName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.node("pgxdb", 1)
	s.wantNodes("n 1 v1")
	s.exec("INSERT INTO rate_limit_nodes (node, epoch, seen) VALUES ('vanished', 9, now() - interval '25 " +
		"h'), " +
		"('away', 9, now() - interval '23 h')")
	s.node("pgxdb", 2)
	s.wantNodes("away 9, n 1 v1, n 2 v1")
	names := s.text("SELECT string_agg(node, ' ' ORDER BY node) FROM rate_limit_proxies WHERE live")
	if names != "n n#2" {
		t.Errorf("the proxies are named %q", names)
	}
	first.Close()
	await.Within(t, longTime, "the row of the first to go", func() bool {
		return s.text("SELECT count(*)::text FROM rate_limit_nodes WHERE node = 'n'") == "1"
	})
	s.wantNodes("away 9, n 2 v1")
	s.nothingReported()
}

// A role that may use the two tables of counts alone counts as before, and the log says once that it lacks
// a registry.
func TestRegistryWithoutPrivileges(t *testing.T) {
	t.Parallel()
	for name, tables := range map[string]string{"missing": "DROP TABLE rate_limit_nodes CASCADE",
		"there": "SELECT 1"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			role := "counts_" + s.text("SELECT current_database()")
			s.exec("REVOKE CREATE ON SCHEMA public FROM public")
			if _, err := s.conn.PgConn().Exec(context.Background(),
				engine.TableSQL+tables+"; CREATE ROLE "+role+
					"; GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_ephemeral, rate_limit_durable TO "+
					role).ReadAll(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.exec("DROP OWNED BY " + role); s.exec("DROP ROLE " + role) })
			store := s.proxy(s.db("options=-c%20role%3D"+role), engine.Options{}, registry.Node{})
			store.Prepare()
			reports := func() []error {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.reported
			}
			await.Within(t, longTime, "the report", func() bool { return len(reports()) > 0 })
			if !takeOne(t, store, hitOn("p", 5, false)).Allowed {
				t.Error("a hit was refused")
			}
			decisions := make([]ratelimit.Decision, 1)
			if !store.TakeLocal(ratelimit.ErrUnavailable, []ratelimit.Hit{hitOn("p", 5, true)}, decisions) ||
				!store.Local().On {
				t.Errorf("no local decision: %+v", decisions)
			}
			await.Within(t, longTime, "exact limits", func() bool { return !store.Local().On })
			store.Close()
			if all := reports(); len(all) != 1 ||
				!strings.Contains(all[0].Error(), "the registry of proxies: ") ||
				!strings.Contains(all[0].Error(), "permission denied") {
				t.Errorf("reported: %v", all)
			}
		})
	}
}

// A proxy with a role that may not use the tables of counts says so in the registry and once in its log, with
// what to run, until the role may.
func TestAProxyThatCannotDecideSaysSo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	role := "decides_nothing_" + s.text("SELECT current_database()")
	if _, err := s.conn.PgConn().Exec(context.Background(),
		engine.TableSQL+"CREATE ROLE "+role+
			"; GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_nodes, rate_limit_durable TO "+
			role).ReadAll(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.exec("DROP OWNED BY " + role); s.exec("DROP ROLE " + role) })
	store := s.proxy(s.db("options=-c%20role%3D"+role), engine.Options{DisableMigration: true},
		registry.Node{Name: "n", Epoch: 1, Region: "eu"})
	store.Prepare()
	cannot := func(want string) {
		t.Helper()
		await.Within(t, longTime, "the registry to say "+want, func() bool {
			return s.text("SELECT coalesce(string_agg(concat_ws(' ', node, report->>'region', "+
				"report->>'cannot'), ', '), '') FROM rate_limit_nodes") == want
		})
	}
	grant := "GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_ephemeral TO " + role
	cannot("n eu " + grant)
	s.exec(grant)
	cannot("n eu")
	store.Close()
	if s.mu.Lock(); len(s.reported) != 1 || !strings.Contains(s.reported[0].Error(), grant) {
		t.Errorf("reported: %v", s.reported)
	}
	s.mu.Unlock()
	if n := s.text("SELECT count(*)::text FROM rate_limit_nodes n WHERE n.ended IS NOT NULL AND NOT " +
		schema.NodeIsLive); n != "1" {
		t.Errorf("%s proxies have ended, want 1", n)
	}
}

// lostDB is a DB that can lose its server.
type lostDB struct {
	pgdb.DB
	mu        sync.Mutex
	state     int
	swallowed atomic.Int64 // charges without an answer
}

// How a lostDB treats statements.
const (
	answers      = iota
	lost         // they fail
	answerIsLost // charges of durable rows have an effect, and fail
)

func (d *lostDB) set(state int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = state
}

func (d *lostDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	if m := engine.Meanings()[statements[0].SQL]; state == answerIsLost && m.Kind == "take" && m.Durable {
		_ = d.DB.Run(ctx, statements)
		d.swallowed.Add(1)
		state = lost
	}
	if state == lost {
		for _, s := range statements {
			s.Err = errors.New("lost")
		}
		return errors.New("lost")
	}
	return d.DB.Run(ctx, statements)
}
