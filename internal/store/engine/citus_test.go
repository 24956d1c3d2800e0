package engine_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/citus"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Tests on a real Citus. make test-citus builds one.
var (
	citusBin  = flag.String("citus", "", "the folder of the programs of a Postgres with Citus")
	citusLoad = flag.Duration("citus-load", 10*time.Second, "how long the chaos lasts")
)

// testShards is the number of shards.
const testShards = 16

// spread is a Citus with counts in shards.
type spread struct {
	t testing.TB
	*citus.Servers
}

// newSpread starts a Citus.
func newSpread(t testing.TB, workers int) *spread {
	t.Helper()
	if *citusBin == "" {
		t.Skip("make test-citus runs this")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
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
	s := &spread{t, servers}
	s.migrate(testShards)
	return s
}

func (s *spread) migrate(shards int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn := cluster.Connect(s.t, s.DSN())
	defer conn.Close(ctx)
	if _, err := migrate.Run(ctx, conn, shards); err != nil {
		s.t.Fatal(err)
	}
}

// store opens a store.
func (s *spread) store(t testing.TB, driver string, o engine.Options) *store.Store {
	t.Helper()
	if o.OnError == nil {
		o.OnError = func(err error) { t.Log("reported:", err) }
	}
	return newChain(t, drivers.All[driver](t, s.DSN()), o)
}

// counted is the sum of the counts of a prefix in a table, by the shard.
func (s *spread) counted(table, prefix string) map[int]int64 {
	s.t.Helper()
	all := map[int]int64{}
	for shard := range testShards {
		text := cluster.Texts(s.t, s.DSN(),
			fmt.Sprintf("SELECT coalesce(sum(count), 0)::text FROM rl_s%d.%s WHERE prefix = $1", shard,
				table), prefix)
		n, err := strconv.ParseInt(text[0], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		all[shard] = n
	}
	return all
}

// where is the worker of a shard.
func (s *spread) where(shard int) int {
	s.t.Helper()
	port := cluster.Texts(s.t, s.DSN(),
		"SELECT nodeport::text FROM citus_shards WHERE table_name = $1::regclass",
		fmt.Sprintf("rl_s%d.rate_limit_ephemeral", shard))
	for i, w := range s.Workers {
		if port[0] == fmt.Sprint(w.Port()) {
			return i
		}
	}
	s.t.Fatalf("shard %d is at port %s", shard, port[0])
	return 0
}

func (s *spread) move(shard, worker int) {
	s.t.Helper()
	if s.where(shard) == worker {
		return
	}
	err := s.Move(context.Background(), fmt.Sprintf("rl_s%d", shard), worker)
	// Citus waits for a second to drop what the last move left behind.
	for tries := 0; err != nil && strings.Contains(err.Error(), "leftover from the previous move") &&
		tries < 20; tries++ {
		err = s.Move(context.Background(), fmt.Sprintf("rl_s%d", shard), worker)
	}
	if err != nil {
		s.t.Error(err)
	}
}

// TestCitus is one test, because a Citus takes a while to start.
func TestCitus(t *testing.T) {
	s := newSpread(t, 3)
	t.Run("the migration is idempotent and refuses another number of shards", s.testMigration)
	for _, driver := range []string{"pgxdb", "pgwire"} {
		t.Run(driver+" passes the conformance suite", func(t *testing.T) {
			conformance.Store(t, func(t testing.TB) ratelimit.Store {
				// other tests have the prefixes, too
				rename := func(l *ratelimit.Limit) { l.Prefix = t.Name() + " " + l.Prefix }
				store := s.store(t, driver, engine.Options{NoRefusals: true})
				return &changing{Store: store, change: rename,
					limits: map[*ratelimit.Limit]*ratelimit.Limit{}}
			})
		})
	}
	t.Run("one limit and key is one row", s.testOneRow)
	s.testFeatures(t)
	t.Run("chaos", s.testChaos)
	t.Run("an uninstall leaves nothing", s.testUninstall)
}

func (s *spread) testUninstall(t *testing.T) {
	page, err := os.ReadFile("../../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Uninstall\n")
	_, sql, _ := strings.Cut(section, "```sql\n")
	sql, _, found := strings.Cut(sql, "```")
	if !found {
		t.Fatal("the run-book has no SQL that uninstalls")
	}
	cluster.Execute(t, s.DSN(), sql)
	if left := cluster.Texts(s.t, s.DSN(), `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'rl\_s%'
UNION ALL SELECT relname::text FROM pg_class WHERE relname LIKE 'rate\_limit%' UNION ALL SELECT
proname::text FROM pg_proc WHERE proname LIKE 'rate\_limit%'`); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func (s *spread) testMigration(t *testing.T) {
	s.migrate(testShards)
	conn := cluster.Connect(t, s.DSN())
	defer conn.Close(context.Background())
	if _, err := migrate.Run(context.Background(), conn, 8); err == nil ||
		!strings.Contains(err.Error(), "--shards: 8: must be 16") {
		t.Errorf("another number: %v", err)
	}
	if m, err := migrate.Run(context.Background(), conn, 0); err != nil || m.Shards == nil ||
		*m.Shards != "up to date" {
		t.Errorf("%+v, %v", m, err)
	}
	_, err := conn.Exec(context.Background(),
		"INSERT INTO rate_limit_ephemeral (prefix, key, expires_at) VALUES ('x', 'y', now())")
	if err == nil || !strings.Contains(err.Error(), "in shards") {
		t.Errorf("a program that does not know of shards counts beside them: %v", err)
	}
}

// testOneRow: all stores have a key in the same shard, which SQL computes as well, and the commands find it.
func (s *spread) testOneRow(t *testing.T) {
	l := &ratelimit.Limit{Prefix: "one", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}
	keys := append([]string{"alice", "ä", "sha256:x"}, strings.Split("a b c d e f g h", " ")...)
	for _, driver := range []string{"pgxdb", "pgwire"} {
		store := s.store(t, driver, engine.Options{})
		// it comes before the shards are found
		takeOne(t, store, ratelimit.Hit{Limit: l, Key: "secret", Secret: true, Cost: 1})
		for _, key := range keys {
			takeOne(t, store, ratelimit.Hit{Limit: l, Key: key, Cost: 1})
			takeOne(t, store, ratelimit.Hit{Limit: l, Key: "of " + key, Subject: key, Cost: 1})
		}
	}
	for shard := range testShards {
		for _, row := range cluster.Texts(s.t, s.DSN(), fmt.Sprintf(`
			SELECT key || ': ' || count || ' in ' || ('x' ||
			left(encode(sha256(convert_to(regexp_replace(key, '^of ', ''), 'UTF8')), 'hex'),
			8))::bit(32)::bigint %% %d
FROM rl_s%d.rate_limit_ephemeral WHERE prefix = 'one' AND key NOT LIKE '%%sha256:%%'`, testShards, shard)) {
			if !strings.HasSuffix(row, fmt.Sprintf(": 2 in %d", shard)) {
				t.Errorf("shard %d has the row %s", shard, row)
			}
		}
	}
	secret := ratelimit.DigestKey("secret")
	if rows := cluster.Texts(s.t, s.DSN(),
		fmt.Sprintf("SELECT count::text FROM rl_s%d.rate_limit_ephemeral WHERE prefix = 'one' AND key = $1",
			store.ShardOf(secret, testShards)), secret); fmt.Sprint(rows) != "[2]" {
		t.Errorf("a secret was counted %v times in its shard", rows)
	}
	if found := cluster.Texts(s.t, s.DSN(),
		"SELECT count::text FROM rate_limit_counters('one', false, '{alice}')"); fmt.Sprint(found) != "[2]" {
		t.Errorf("get: %v", found)
	}
	if all := cluster.Texts(s.t, s.DSN(), "SELECT key FROM rate_limit_counters('one', false)"); len(
		all) != 2*len(keys)+1 {
		t.Errorf("top: %d counters", len(all))
	}
	for _, want := range []string{"[1]", "[0]"} {
		if reset := cluster.Texts(s.t, s.DSN(),
			"SELECT rate_limit_reset('one', 'alice')::text"); fmt.Sprint(reset) != want {
			t.Errorf("reset: %v, want %s", reset, want)
		}
	}
	for _, want := range []string{"[2]", "[]"} {
		if found := cluster.Texts(s.t, s.DSN(),
			"SELECT count::text FROM rate_limit_counters('one', false, '{b}')"); fmt.Sprint(found) != want {
			t.Errorf("forget: %v, want %s", found, want)
		}
		cluster.Texts(s.t, s.DSN(), "SELECT deleted::text FROM rate_limit_forget_person('b')")
	}
}

// apartFrom is a key in another shard than a subject.
func apartFrom(subject string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("k", i); store.ShardOf(key, testShards) != store.ShardOf(subject, testShards) {
			return key
		}
	}
}
