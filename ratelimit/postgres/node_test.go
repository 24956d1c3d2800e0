package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/hooks"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// nodesSQL is the registry of proxies, in one text.
const nodesSQL = `SELECT coalesce(string_agg(concat_ws(' ', node, epoch, version, applied_seq, nullif(array_to_string(problems, ';'), '')), ', ' ORDER BY node), '') FROM rate_limit_nodes`

func (s *site) wantNodes(want string) {
	s.t.Helper()
	await.Within(s.t, 20*time.Second, "the tables of the registry", func() bool {
		return s.text("SELECT count(*)::text FROM pg_attribute WHERE attrelid = to_regclass('rate_limit_nodes') AND attname = 'epoch'") == "1"
	})
	got := ""
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if got = s.text(nodesSQL); got == want {
			return
		}
		if time.Now().After(until) {
			s.t.Fatalf("the registry has %q, want %q", got, want)
		}
	}
}

// node opens a store of the process n, over one of the drivers.
func (s *site) node(driver string, epoch int64) *postgres.Store {
	store := s.storeOn(drivers.All[driver](s.t, s.dsn), postgres.Options{Node: &postgres.Node{Name: "n", Version: "v1", Epoch: epoch}})
	store.Prepare()
	return store
}

// A proxy with any limit is in the registry from its start to its end, on every server. The tables
// are those of the npm library, or of a version before.
func TestAProxyIsInTheRegistry(t *testing.T) {
	old := `CREATE TABLE rate_limit_nodes (node text NOT NULL CONSTRAINT rate_limit_nodes_pkey PRIMARY KEY, region text, version text,
		applied_seq bigint NOT NULL DEFAULT 0, seen timestamptz NOT NULL DEFAULT now(), problems text[] NOT NULL DEFAULT '{}');
		INSERT INTO rate_limit_nodes (node, version, applied_seq) VALUES ('old/caddy/7', 'v0', 5)`
	for name, test := range map[string]struct{ before, others string }{
		"an empty database":                {},
		"the tables of counts":             {before: postgres.TableSQL + "DROP TABLE rate_limit_nodes, rate_limit_pause"},
		"the tables of the version before": {before: postgres.TableSQL + "DROP TABLE rate_limit_nodes, rate_limit_pause;" + old, others: ", old/caddy/7 0 v0 5"},
	} {
		for driver := range drivers.All {
			t.Run(name+", "+driver, func(t *testing.T) {
				s := newSite(t)
				if _, err := s.conn.PgConn().Exec(context.Background(), test.before).ReadAll(); err != nil {
					t.Fatal(err)
				}
				store := s.node(driver, 7)
				s.wantNodes("n 7 v1" + test.others)
				hooks.SetApplied(store, 12, "1", []string{"rule a: wrong", "rule b: wrong"})
				s.wantNodes("n 7 v1 12 rule a: wrong;rule b: wrong" + test.others)
				if test.others != "" { // a proxy of the version before
					s.exec(`INSERT INTO rate_limit_nodes AS n (node, region, version, applied_seq, seen, problems) VALUES ('old/caddy/7', null, 'v0', 6, now(), '{}')
						ON CONFLICT (node) DO UPDATE SET region = excluded.region, version = excluded.version, applied_seq = excluded.applied_seq, seen = excluded.seen, problems = excluded.problems`)
					s.exec("UPDATE rate_limit_nodes SET seen = now() - interval '80 s' WHERE epoch = 0")
					if n := s.text("SELECT count(*)::text FROM rate_limit_nodes n WHERE " + schema.NodeIsLive); n != "2" {
						t.Errorf("%s proxies are live, want 2", n)
					}
				}
				// Another store of the process has no policy, and takes nothing away.
				other := s.node("pgxdb", 7)
				s.exec("UPDATE rate_limit_nodes SET version = '-' WHERE node = 'n'")
				s.wantNodes("n 7 v1 12 rule a: wrong;rule b: wrong" + strings.Replace(test.others, " 5", " 6", 1))
				other.Close()
				store.Close()
				s.wantNodes(strings.TrimPrefix(strings.Replace(test.others, " 5", " 6", 1), ", "))
				s.nothingReported()
			})
		}
	}
}

// Two processes of one name are two rows. When the first has gone, the second takes over the name.
// The rows of processes that vanished are deleted after a day.
func TestTwoProcessesOfOneName(t *testing.T) {
	s := newSite(t)
	first := s.node("pgxdb", 1)
	s.wantNodes("n 1 v1")
	s.exec("INSERT INTO rate_limit_nodes (node, epoch, seen) VALUES ('n#2', 9, now()), ('vanished', 9, now() - interval '25 h'), ('away', 9, now() - interval '23 h')")
	s.node("pgxdb", 2)
	s.wantNodes("away 9, n 1 v1, n#2 9, n#3 2 v1")
	first.Close()
	s.wantNodes("away 9, n 2 v1, n#2 9")
	// It was thought to be gone, and another process has taken the name.
	s.exec("UPDATE rate_limit_nodes SET epoch = 3 WHERE node = 'n'; ")
	s.exec("UPDATE rate_limit_nodes SET seen = now() - interval '11 s' WHERE node = 'n#2'")
	s.wantNodes("away 9, n 3 v1, n#2 2 v1")
	s.nothingReported()
}

// A role that may use the two tables of counts alone counts as before, and the log says once that
// there is no registry.
func TestRegistryWithoutPrivileges(t *testing.T) {
	for name, tables := range map[string]string{"of the version before": "DROP TABLE rate_limit_nodes, rate_limit_pause", "of this version": "SELECT 1"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			role := "counts_" + s.text("SELECT current_database()")
			s.exec("REVOKE CREATE ON SCHEMA public FROM public")
			if _, err := s.conn.PgConn().Exec(context.Background(), postgres.TableSQL+tables+"; CREATE ROLE "+role+"; GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_ephemeral, rate_limit_durable TO "+role).ReadAll(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.exec("DROP OWNED BY " + role); s.exec("DROP ROLE " + role) })
			store := s.storeOn(s.db("options=-c%20role%3D"+role), postgres.Options{Node: &postgres.Node{Name: "n", Epoch: 1}})
			store.Prepare()
			reports := func() []error {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.reported
			}
			await.Within(t, 20*time.Second, "the report", func() bool { return len(reports()) > 0 })
			if !takeOne(t, store, hitOn("p", 5, false)).Allowed || store.Paused() {
				t.Error("a hit was refused, or limits are paused")
			}
			decisions := make([]ratelimit.Decision, 1)
			if !hooks.TakeLocal(store, ratelimit.ErrUnavailable, 1, []ratelimit.Hit{hitOn("p", 5, true)}, decisions) || hooks.LocalSince(store).IsZero() {
				t.Errorf("no local decision: %+v", decisions)
			}
			await.Within(t, 20*time.Second, "exact limits", func() bool { return hooks.LocalSince(store).IsZero() })
			store.Close()
			if all := reports(); len(all) != 1 || !strings.Contains(all[0].Error(), "the registry of proxies: ") || !strings.Contains(all[0].Error(), "permission denied") {
				t.Errorf("reported: %v", all)
			}
		})
	}
}

// lostDB is a DB that can lose its server.
type lostDB struct {
	postgres.DB
	mu        sync.Mutex
	state     int
	swallowed atomic.Int64 // charges of which the answer was lost
}

// How a lostDB treats statements.
const (
	answers      = iota
	lost         // they fail
	answerIsLost // charges have an effect, and fail
)

func (d *lostDB) set(state int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = state
}

func (d *lostDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	if state == answerIsLost && strings.Contains(statements[0].SQL, "SET charged") {
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

// A pause is obeyed within a second, said each time, and ends by a command or by itself, also while
// the database is away. Leases are given back when it begins.
func TestPause(t *testing.T) {
	s := newSite(t)
	db := &lostDB{DB: s.db("")}
	var mu sync.Mutex
	var notices []string
	o := postgres.Options{CleanupProbability: -1, Node: &postgres.Node{Name: "n", Epoch: 1, Notice: func(text string) {
		mu.Lock()
		defer mu.Unlock()
		notices = append(notices, text)
	}}}
	store := s.storeOn(db, o)
	store.Prepare()
	s.wantNodes("n 1")
	h := hitOn("p", 100000, false)
	h.Limit.Lease = 0.1
	await.Within(t, 20*time.Second, "a lease", func() bool {
		takeOne(t, store, h)
		return store.Stats().LeasedUnits > 0
	})
	pause := func(lasts string) {
		s.exec("INSERT INTO rate_limit_pause (until, reason) VALUES (now() + $1::interval, 'a test') ON CONFLICT (id) DO UPDATE SET until = excluded.until", lasts)
		await.Within(t, 20*time.Second, "the pause", store.Paused)
	}
	pause("1 h")
	if units := store.Stats().LeasedUnits; units != 0 {
		t.Errorf("%d units are held in the pause", units)
	}
	await.Within(t, 20*time.Second, "the registry", func() bool { return s.text("SELECT paused::text FROM rate_limit_nodes") == "true" })
	for range 100 { // of callers that do not ask whether limits are paused, such as those that count for bans
		takeOne(t, store, h)
	}
	if units := store.Stats().LeasedUnits; units != 0 {
		t.Errorf("%d units are held in the pause", units)
	}
	s.exec("DELETE FROM rate_limit_pause")
	await.Within(t, 20*time.Second, "the end of the pause", func() bool { return !store.Paused() })
	await.Within(t, 20*time.Second, "a lease after the pause", func() bool {
		takeOne(t, store, h)
		return store.Stats().LeasedUnits > 0
	})

	pause("4 s")
	db.set(lost)
	if !store.Paused() {
		t.Error("the pause ended with the connection")
	}
	await.Within(t, 20*time.Second, "the end of the pause by itself", func() bool { return !store.Paused() })
	mu.Lock()
	defer mu.Unlock()
	if len(notices) < 3 || !strings.HasPrefix(notices[0], "limits are paused until ") || !strings.Contains(notices[0], ": a test. Bans") || notices[1] != "limits apply again" {
		t.Errorf("notices: %q", notices)
	}
}

// A restore drops the tables of the registry, and makes them again without a primary key at first. The
// row is there again a moment after the restore, and a pause is obeyed.
func TestTheRegistryIsRestored(t *testing.T) {
	s := newSite(t)
	store := s.node("pgxdb", 1)
	s.wantNodes("n 1 v1")
	s.exec("ALTER TABLE rate_limit_ephemeral DROP CONSTRAINT rate_limit_ephemeral_pkey")
	s.exec("DROP TABLE rate_limit_nodes, rate_limit_pause")
	await.Within(t, 20*time.Second, "the report", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(fmt.Sprint(s.reported), `"rate_limit_nodes" does not exist`) && strings.Contains(fmt.Sprint(s.reported), `"rate_limit_pause" does not exist`)
	})
	if _, err := s.conn.PgConn().Exec(context.Background(), "ALTER TABLE rate_limit_ephemeral ADD PRIMARY KEY (prefix, key);"+schema.Nodes).ReadAll(); err != nil {
		t.Fatal(err)
	}
	s.wantNodes("n 1 v1")
	s.exec("INSERT INTO rate_limit_pause (until) VALUES ('294000-01-01')")
	await.Within(t, 20*time.Second, "the pause", store.Paused)
}
