package integration

import (
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestUpdatesStayHOT sends 300,000 hits on 10,000 keys to one table. Almost
// every update must stay on its page and leave the indexes alone, and the
// second half must find the room that it needs in what the first half left.
//
// The space of an old version of a row is free as soon as no snapshot can see the version.
// So that no other snapshot changes the figures on a busy machine, there is one statement at
// a time, no cleanup and no vacuum.
func TestUpdatesStayHOT(t *testing.T) {
	t.Parallel()
	path := buildHammer(t)
	server := cluster.Private(t, cluster.Options{Config: map[string]string{"autovacuum": "off"}})
	for i, kind := range []struct{ name, algorithm, limit, burst string }{
		{"sliding_window", "sliding_window", "1000 1m", ""},
		{"token_bucket", "token_bucket", "1000 1m", ""},
		{"token_bucket, refilled often", "token_bucket", "10 1s", "1000"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			database := "hot" + strconv.Itoa(i)
			execute(t, server.DSN("postgres"), "CREATE DATABASE "+database)
			dsn := server.DSN(database)
			const keys, hits = 10000, 300000
			half := func(first int) (size int64) {
				o, err := hammer(t.Context(), path, "-dsn", dsn, "-algorithm", kind.algorithm, "-limit", kind.limit, "-burst", kind.burst,
					"-keys", strconv.Itoa(keys), "-hits", strconv.Itoa(hits/2), "-first", strconv.Itoa(first), "-callers", "128",
					"-workers", "1", "-cleanup", "-1")
				if err != nil {
					t.Fatal(err)
				}
				sum := int64(0)
				for _, n := range o.Admitted {
					sum += n
				}
				if sum != hits/2 {
					t.Errorf("admitted %d of %d hits; all have room", sum, hits/2)
				}
				return queryInt(t, dsn, "SELECT pg_total_relation_size('rate_limit_ephemeral')")
			}
			middle := half(0)
			end := half(hits / 2)
			// The counters of a connection are complete when it has ended.
			await(t, "the hammer's connections to end", func() bool {
				return queryInt(t, dsn, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()", database) == 0
			})
			updates := queryInt(t, dsn, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'rate_limit_ephemeral'")
			hot := queryInt(t, dsn, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'rate_limit_ephemeral'")
			share := 100 * float64(hot) / float64(updates)
			t.Logf("%.2f %% of %d updates were HOT; with its indexes the table had %d bytes in the middle, %d at the end", share, updates, middle, end)
			// A row is made once, and hits of a key may share a statement.
			if updates < hits*9/10 {
				t.Errorf("%d updates for %d hits", updates, hits)
			}
			if share < 95 {
				t.Errorf("%.2f %% of the updates were HOT, want 95", share)
			}
			if end > middle+middle/10 {
				t.Errorf("the table grew from %d bytes to %d in the second half", middle, end)
			}
		})
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	const patience = 30 * time.Second
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// connect is a connection for the test to close.
func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// execute runs SQL text, which may hold several commands.
func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn := connect(t, dsn)
	defer conn.Close(t.Context())
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// queryInt runs a query for one number. cluster.Connections does not count its connection.
func queryInt(t *testing.T, dsn, sql string, args ...any) int64 {
	t.Helper()
	conn := cluster.Watch(t, t.Context(), dsn)
	defer conn.Close(t.Context())
	var n int64
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
