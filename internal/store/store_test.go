package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// The chain passes the conformance suite in a proxy, and also with its counts in parts.
func TestConformance(t *testing.T) {
	for driver, open := range drivers.All {
		for name, connect := range map[string]func(t testing.TB, dsn string) pgdb.DB{
			"one database": open,
			"parts": func(t testing.TB, dsn string) pgdb.DB {
				makeParts(t, dsn)
				return &partsDB{DB: open(t, dsn), open: func() pgdb.DB { return open(t, dsn) }}
			},
		} {
			t.Run(name+", "+driver, func(t *testing.T) {
				conformance.Store(t, func(t testing.TB) ratelimit.Store {
					o := engine.Options{OnError: func(err error) { t.Errorf("reported: %v", err) }}
					s, err := store.Open(connect(t, cluster.Open(t)), o, &registry.Node{Name: "n", Epoch: 1})
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
}

// numberOfParts is how many parts a partsDB has.
const numberOfParts = 16

// makeParts makes a database with counts in parts: each is a schema.
func makeParts(t testing.TB, dsn string) {
	t.Helper()
	sql := engine.TableSQL
	for part := range numberOfParts {
		sql += fmt.Sprintf("CREATE SCHEMA rl_p%d;", part)
		for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable", "rate_limit_processes"} {
			sql += fmt.Sprintf("CREATE TABLE rl_p%d.%s (LIKE %s INCLUDING ALL);", part, table, table)
		}
	}
	sql += fmt.Sprintf(`CREATE FUNCTION rate_limit_parts() RETURNS TABLE (part int, schema text) LANGUAGE sql
	AS $$ SELECT n, 'rl_p' || n FROM generate_series(0, %d) n $$`, numberOfParts-1)
	if _, err := cluster.Connect(t, dsn).PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// partsDB is a database with parts, or the server of one. No Citus is needed: all are on one server.
type partsDB struct {
	pgdb.DB
	open func() pgdb.DB
}

// routesSQL has what schema.PartRoutes returns on Citus. The guard does nothing, and the port is the part.
const routesSQL = `SELECT p.part::int, t.name, p.schema || '.' || t.name, 'pg_backend_pid()', 'host', p.part::int
FROM unnest($1::text[]) WITH ORDINALITY AS p(schema, part), unnest(ARRAY['rate_limit_ephemeral', 'rate_limit_durable', 'rate_limit_processes']) AS t(name)`

func (d *partsDB) At(string, int) (pgdb.DB, error) { return &partsDB{DB: d.open(), open: d.open}, nil }

func (d *partsDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	for _, s := range statements {
		if s.SQL == schema.PartRoutes {
			s.SQL = routesSQL
		}
	}
	return d.DB.Run(ctx, statements)
}
