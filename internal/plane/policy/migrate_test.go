package policy_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestTheLastOfManyMigrationsDoesNothing: proxies that start together wait for each other, and
// find that nothing is left to do.
func TestTheLastOfManyMigrationsDoesNothing(t *testing.T) {
	s := siteOn(t, cluster.Open(t))
	if s.number("SELECT current_setting('server_version_num')::bigint") < 150000 {
		t.Skip("this server is older than Postgres 15, and has no policy")
	}
	s.exec(postgres.TableSQL)
	first, err := pgx.Connect(context.Background(), s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { first.Close(context.Background()) })
	run := func(sql string) {
		t.Helper()
		if _, err := first.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	run("BEGIN;" + schema.Lock)
	db := s.db()
	defer db.Close()
	done := make(chan error, 1)
	go func() { done <- policy.Migrate(context.Background(), db) }()
	await.Within(t, 20*time.Second, "the second migration to wait for the first", func() bool {
		return s.number(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
	})
	run(schema.Policy + "COMMIT")
	// Each run of schema.Policy writes the row of this function.
	const rowSQL = "SELECT xmin::text::bigint FROM pg_proc WHERE proname = 'rate_limit_policy_version'"
	made := s.number(rowSQL)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := s.number(rowSQL); got != made {
		t.Errorf("the second migration ran the SQL of the first again: transaction %d, then %d", made, got)
	}
}
