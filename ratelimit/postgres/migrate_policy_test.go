package postgres_test

import (
	"context"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestTheLastOfManyMigrationsDoesNothing: proxies that start together wait for each other, and
// find that nothing is left to do.
func TestTheLastOfManyMigrationsDoesNothing(t *testing.T) {
	s := newSite(t)
	if s.text("SELECT current_setting('server_version_num')") < "150000" {
		t.Skip("this server is older than Postgres 15, and has no policy")
	}
	s.exec(postgres.TableSQL)
	first := s.connect()
	run := func(sql string) {
		t.Helper()
		if _, err := first.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	run("BEGIN;" + schema.Lock)
	db := s.db("")
	done := make(chan error, 1)
	go func() { done <- postgres.MigratePolicy(context.Background(), db) }()
	eventually(t, "the second migration to wait for the first", func() bool {
		return s.text(`SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == "1"
	})
	run(schema.Policy + "COMMIT")
	// Each run of schema.Policy writes the row of this function.
	const rowSQL = "SELECT xmin::text FROM pg_proc WHERE proname = 'rate_limit_policy_version'"
	made := s.text(rowSQL)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := s.text(rowSQL); got != made {
		t.Errorf("the second migration ran the SQL of the first again: transaction %s, then %s", made, got)
	}
}
