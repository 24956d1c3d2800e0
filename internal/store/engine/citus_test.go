package engine_test

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/citus"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// These tests run on a real Citus, which make test-citus builds.
var (
	citusBin  = flag.String("citus", "", "the folder of the programs of a Postgres with Citus")
	citusLoad = flag.Duration("citus-load", 10*time.Second, "the duration of the chaos")
)

// testShards is the number of shards.
const testShards = 16

// citusDB is a Citus database with counts in shards.
type citusDB struct {
	t testing.TB
	*citus.Servers
}

// startCitus starts a Citus with shards. Without the flag -citus, it skips the test.
func startCitus(t testing.TB, workers, shards int) *citusDB {
	t.Helper()
	if *citusBin == "" {
		t.Skip("make test-citus runs this")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	servers, err := citus.Start(ctx, citus.Options{BinDir: *citusBin, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := servers.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := &citusDB{t, servers}
	s.migrate(shards)
	return s
}

func (s *citusDB) migrate(shards int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Minute)
	defer cancel()
	conn := cluster.Connect(s.t, s.DSN())
	defer conn.Close(ctx)
	if _, err := migrate.Run(ctx, conn, shards); err != nil {
		s.t.Fatal(err)
	}
}

// openStore opens a store.
func (s *citusDB) openStore(t testing.TB, driver string, o engine.Options) *store.Store {
	t.Helper()
	if o.OnError == nil {
		o.OnError = func(err error) { t.Log("reported:", err) }
	}
	return openStore(t, drivers.All[driver](t, s.DSN()), o, nil)
}

// countsByShard returns the sum of the counts of a prefix in each shard of a table.
func (s *citusDB) countsByShard(table, prefix string) map[int]int64 {
	s.t.Helper()
	counts := map[int]int64{}
	for shard := range testShards {
		sums := cluster.Texts(s.t, s.DSN(),
			fmt.Sprintf("SELECT coalesce(sum(count), 0)::text FROM rl_s%d.%s WHERE prefix = $1", shard,
				table), prefix)
		n, err := strconv.ParseInt(sums[0], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		counts[shard] = n
	}
	return counts
}

// workerOf returns the worker that has a shard.
func (s *citusDB) workerOf(shard int) int {
	s.t.Helper()
	port := cluster.Texts(s.t, s.DSN(),
		"SELECT nodeport::text FROM citus_shards WHERE table_name = $1::regclass",
		fmt.Sprintf("rl_s%d.rate_limit_ephemeral", shard))
	for i, w := range s.Workers {
		if port[0] == fmt.Sprint(w.Port()) {
			return i
		}
	}
	s.t.Fatalf("shard %d is at port %s, want the port of a worker", shard, port[0])
	return 0
}

func (s *citusDB) moveShard(shard, worker int) {
	s.t.Helper()
	if s.workerOf(shard) == worker {
		return
	}
	err := s.Move(s.t.Context(), fmt.Sprintf("rl_s%d", shard), worker)
	// Citus drops the leftovers of the last move in the background.
	for until := time.Now().Add(testTimeout); err != nil && time.Now().Before(until) &&
		strings.Contains(err.Error(), "leftover from the previous move"); time.Sleep(100 * time.Millisecond) {
		err = s.Move(s.t.Context(), fmt.Sprintf("rl_s%d", shard), worker)
	}
	if err != nil {
		s.t.Error(err)
	}
}

// TestCitus runs all tests on one Citus, which takes a while to start.
func TestCitus(t *testing.T) {
	s := startCitus(t, 3, testShards)
	t.Run("the migration is idempotent and refuses another number of shards", s.testMigration)
	for _, driver := range []string{"pgxdb", "pgwire"} {
		t.Run(driver+" passes the conformance suite", func(t *testing.T) {
			conformance.Store(t, func(t testing.TB) ratelimit.Store {
				return s.openStore(t, driver, engine.Options{DisableRememberedRefusals: true})
			})
		})
	}
	t.Run("one limit and key is one row", s.testOneRow)
	t.Run("roles have their rights on the shards", s.testRights)
	for _, driver := range []string{"pgxdb", "pgwire"} {
		t.Run(driver+": slots stay while shards move", func(t *testing.T) { s.testSlots(t, driver) })
	}
	for _, driver := range []string{"pgxdb", "pgwire"} {
		t.Run(driver+": tokens are charged once while shards move", func(t *testing.T) {
			s.testLedger(t, driver)
		})
	}
	t.Run("chaos", s.testChaos)
	t.Run("an uninstall leaves nothing", s.testUninstall)
}

// testUninstall checks that deploy/uninstall.sql deletes everything.
func (s *citusDB) testUninstall(t *testing.T) {
	sql, err := os.ReadFile("../../../deploy/uninstall.sql")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Execute(t, s.DSN(), string(sql))
	left := cluster.Texts(s.t, s.DSN(), `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'rl\_s%'
UNION ALL SELECT relname::text FROM pg_class WHERE relname LIKE 'rate\_limit%' UNION ALL SELECT
proname::text FROM pg_proc WHERE proname LIKE 'rate\_limit%'`)
	if len(left) > 0 {
		t.Errorf("the uninstall leaves %v, want nothing", left)
	}
}

func (s *citusDB) testMigration(t *testing.T) {
	s.migrate(testShards)
	conn := cluster.Connect(t, s.DSN())
	defer conn.Close(context.Background())
	_, err := migrate.Run(t.Context(), conn, 8)
	if !strings.Contains(fmt.Sprint(err), "--shards: 8: must be 16") {
		t.Errorf("8 shards: error %v, want --shards: 8: must be 16", err)
	}
	m, err := migrate.Run(t.Context(), conn, 0)
	if err != nil || m.Shards == nil || *m.Shards != "up to date" {
		t.Errorf("again: %+v, %v; want the shards up to date", m, err)
	}
	_, err = conn.Exec(t.Context(),
		"INSERT INTO rate_limit_ephemeral (prefix, key, expires_at) VALUES ('x', 'y', now())")
	if !strings.Contains(fmt.Sprint(err), "in shards") {
		t.Errorf("an INSERT without shards: error %v, want in shards", err)
	}
}

// testRights checks that a role that does not own the tables counts in all shards and resets counters there,
// where durable windows stay, and that a migration grants it what it lacks.
func (s *citusDB) testRights(t *testing.T) {
	for _, sql := range []string{"CREATE ROLE caddy LOGIN", "SELECT rate_limit_grant('caddy', 'proxy')",
		"SELECT rate_limit_grant('caddy', 'administrator')",
		"REVOKE ALL ON rl_s3.rate_limit_ephemeral FROM caddy"} {
		cluster.Execute(t, s.DSN(), sql)
	}
	s.migrate(testShards)
	dsn, err := url.Parse(s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	dsn.User = url.User("caddy")
	store := openStore(t, drivers.All["pgxdb"](t, dsn.String()), engine.Options{DisableMigration: true}, nil)
	for durable, left := range map[bool]int{false: 0, true: 5 * testShards} {
		l := &ratelimit.Limit{Prefix: fmt.Sprint("rights ", durable), Algorithm: ratelimit.FixedWindow,
			Events: 1, Window: time.Hour, Durable: durable}
		for key := range 5 * testShards {
			if !takeOne(t, store, ratelimit.Hit{Limit: l, Key: fmt.Sprint(key), Cost: 1}).Allowed {
				t.Errorf("the first hit of key %d is refused", key)
			}
		}
		got := cluster.Texts(t, dsn.String(), "SELECT sum(rate_limit_reset($1, key::text))::text FROM "+
			"generate_series(0, $2::int - 1) key", l.Prefix, 5*testShards)
		got = append(got, cluster.Texts(t, dsn.String(), "SELECT count(*)::text "+
			"FROM rate_limit_counters($1, $2) WHERE count = 0", l.Prefix, durable)...)
		if want := fmt.Sprint([]int{5 * testShards, left}); fmt.Sprint(got) != want {
			t.Errorf("a reset of all keys, durable %v: counters, and those with 0: %s, want %s", durable,
				got, want)
		}
	}
	cluster.Execute(t, s.DSN(), "SELECT rate_limit_revoke(role, kind) FROM rate_limit_grants")
	cluster.Execute(t, s.DSN(), "DROP ROLE caddy")
}

// testOneRow checks that all stores and SQL find the same shard for a key, and that commands find its row.
func (s *citusDB) testOneRow(t *testing.T) {
	l := &ratelimit.Limit{Prefix: "one", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}
	keys := append([]string{"alice", "ä", "sha256:x"}, strings.Split("a b c d e f g h", " ")...)
	for _, driver := range []string{"pgxdb", "pgwire"} {
		store := s.openStore(t, driver, engine.Options{})
		// the first hit arrives before the store has found the shards
		takeOne(t, store, ratelimit.Hit{Limit: l, Key: "secret", Secret: true, Cost: 1})
		for _, key := range keys {
			takeOne(t, store, ratelimit.Hit{Limit: l, Key: key, Cost: 1})
			takeOne(t, store, ratelimit.Hit{Limit: l, Key: "of " + key, Subject: key, Cost: 1})
		}
	}
	for shard := range testShards {
		rows := cluster.Texts(s.t, s.DSN(), fmt.Sprintf(`
			SELECT key || ': ' || count || ' in ' || ('x' ||
			left(encode(sha256(convert_to(regexp_replace(key, '^of ', ''), 'UTF8')), 'hex'),
			8))::bit(32)::bigint %% %d
FROM rl_s%d.rate_limit_ephemeral WHERE prefix = 'one' AND key NOT LIKE '%%sha256:%%'`, testShards, shard))
		for _, row := range rows {
			if !strings.HasSuffix(row, fmt.Sprintf(": 2 in %d", shard)) {
				t.Errorf("shard %d has the row %q, want : 2 in %[1]d", shard, row)
			}
		}
	}
	secret := ratelimit.DigestKey("secret")
	for _, c := range []struct{ sql, want string }{
		{fmt.Sprintf("SELECT count::text FROM rl_s%d.rate_limit_ephemeral WHERE prefix = 'one' AND key = "+
			"'%s'", store.ShardOf(secret, testShards), secret), "[2]"},
		{"SELECT count::text FROM rate_limit_counters('one', false, '{alice}')", "[2]"},
		{"SELECT count(*)::text FROM rate_limit_counters('one', false)", fmt.Sprintf("[%d]", 2*len(keys)+1)},
		{"SELECT rate_limit_reset('one', 'alice')::text", "[1]"},
		{"SELECT rate_limit_reset('one', 'alice')::text", "[0]"},
		{"SELECT count::text FROM rate_limit_counters('one', false, '{b}')", "[2]"},
		{"SELECT count(deleted)::text FROM rate_limit_forget_person('b')", ""},
		{"SELECT count::text FROM rate_limit_counters('one', false, '{b}')", "[]"},
	} {
		if got := fmt.Sprint(cluster.Texts(s.t, s.DSN(), c.sql)); c.want != "" && got != c.want {
			t.Errorf("%s: got %s, want %s", c.sql, got, c.want)
		}
	}
}
