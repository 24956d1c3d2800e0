package store_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A proxy's store passes the conformance suite with its counts in one database and in shards.
func TestConformance(t *testing.T) {
	open := drivers.All["pgwire"]
	for name, connect := range map[string]func(t testing.TB, dsn string) pgdb.DB{
		"one database": open,
		"shards": func(t testing.TB, dsn string) pgdb.DB {
			return &shardsDB{DB: open(t, dsn), open: func() pgdb.DB { return open(t, dsn) }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dsn := cluster.Open(t)
			if name == "shards" {
				makeShards(t, dsn)
			}
			conformance.Store(t, func(t testing.TB) ratelimit.Store {
				o := engine.Options{OnError: func(err error) {
					t.Errorf("OnError got %v, want no call",
						err)
				}}
				s, err := store.Open(connect(t, dsn), o, &registry.Node{Name: t.Name(), Epoch: 1})
				if err != nil {
					t.Fatal(err)
				}
				s.UseLocal()
				s.Prepare()
				return s
			})
		})
	}
}

// numberOfShards is the number of shards of a shardsDB.
const numberOfShards = 16

// makeShards creates the tables of counts, and numberOfShards schemas with copies of them as shards.
func makeShards(t testing.TB, dsn string) {
	t.Helper()
	sql := engine.TableSQL
	for shard := range numberOfShards {
		sql += fmt.Sprintf("CREATE SCHEMA rl_s%d;", shard)
		for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable", "rate_limit_processes",
			"rate_limit_ledger"} {
			partitions := ""
			if table == "rate_limit_ledger" {
				partitions = " PARTITION BY RANGE (day)"
			}
			sql += fmt.Sprintf("CREATE TABLE rl_s%d.%s (LIKE %s INCLUDING ALL)%s;", shard, table, table,
				partitions)
		}
	}
	sql += fmt.Sprintf(`CREATE FUNCTION rate_limit_shards() RETURNS TABLE (shard int, schema text)
	LANGUAGE sql AS $$ SELECT n, 'rl_s' || n FROM generate_series(0, %d) n $$`, numberOfShards-1)
	if _, err := cluster.Connect(t, dsn).PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// shardsDB is a database with shards, or the server of a shard. All shards are on one server without Citus.
type shardsDB struct {
	pgdb.DB
	open func() pgdb.DB
}

// routesSQL returns the columns of schema.ShardRoutes. The guard does nothing, and the port is the shard.
const routesSQL = `SELECT p.shard::int, t.name, p.schema || '.' || t.name, 'pg_backend_pid()', 'host',
	p.shard::int
FROM unnest($1::text[]) WITH ORDINALITY AS p(schema, shard),
	unnest(ARRAY['rate_limit_ephemeral', 'rate_limit_durable', 'rate_limit_processes', 'rate_limit_ledger'])
		AS t(name)`

func (d *shardsDB) At(string, int) (pgdb.DB, error) {
	return &shardsDB{DB: d.open(), open: d.open}, nil
}

func (d *shardsDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	for _, s := range statements {
		if s.SQL == schema.ShardRoutes {
			s.SQL = routesSQL
		}
	}
	return d.DB.Run(ctx, timeout, statements)
}

// If shards are created while a store runs, and a table of counts is away for a time, the store keeps its one
// engine for all keys.
func TestStoreKeepsEngines(t *testing.T) {
	dsn := cluster.Open(t)
	db := &shardsDB{DB: drivers.All["pgwire"](t, dsn)}
	s, err := store.Open(db, engine.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := &ratelimit.Limit{Prefix: "p", Events: 9, Window: time.Hour}
	hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: 1}}
	takes := func() bool {
		return s.Take(t.Context(), 5*time.Second, hits, make([]ratelimit.Decision, 1)) == nil
	}
	await.Within(t, 10*time.Second, "a decision", takes)
	makeShards(t, dsn)
	cluster.Execute(t, dsn, "ALTER TABLE rate_limit_ephemeral RENAME TO away")
	if takes() {
		t.Error("a hit without tables was decided, want an error")
	}
	cluster.Execute(t, dsn, "ALTER TABLE away RENAME TO rate_limit_ephemeral")
	await.Within(t, 10*time.Second, "a decision after the table was away", takes)
	for key := range 100 {
		if s.Engine(fmt.Sprint(key)) != s.Engine("k") {
			t.Fatalf("the key %d has another engine than k, want one engine for all keys", key)
		}
	}
}

// After a request has waited for the tables, its statement has the whole timeout.
func TestWaitForTablesShortensNoStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var given time.Duration // of the first statement
		s, err := store.Open(fakedb.Func(func(_ context.Context, timeout time.Duration,
			statements []*pgdb.Statement) error {
			switch {
			case statements == nil: // the tables are created in almost 2 s
				time.Sleep(1990 * time.Millisecond)
				return nil
			case statements[0].SQL == schema.Locked:
				return nil // no rows: there are no tables
			case given == 0:
				given = timeout
			}
			return pgdb.ErrNotSent
		}), engine.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 9, Window: time.Hour}, Cost: 1}}
		_ = s.Take(t.Context(), 2*time.Second, hits, make([]ratelimit.Decision, 1))
		s.Close()
		check.Equal(t, "the timeout of the statement", given, 2*time.Second)
	})
}

// What a process has to settle is lost at its end if it has not reached its database.
func TestEndLosesWhatNoDatabaseCharges(t *testing.T) {
	for name, end := range map[string]func(s *store.Store){
		"Close": (*store.Store).Close, "Flush": (*store.Store).Flush,
	} {
		db := drivers.All["pgwire"](t, "postgres://u@127.0.0.1:1/db?sslmode=disable")
		s, err := store.Open(db, engine.Options{}, nil)
		check.OK(t, err)
		s.Settle(&batch.Bill{ID: "1"})
		end(s)
		check.Equal(t, "lost at "+name, s.Stats()[engine.Unsettled], int64(1))
		s.Close()
	}
}
