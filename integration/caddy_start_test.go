package integration

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// libraryTables are the two tables as the npm library pg-ratelimit makes them,
// with rows: one of a fixed window that began a moment ago, in either table, and
// one of a bucket.
const libraryTables = `
CREATE UNLOGGED TABLE rate_limit_ephemeral (prefix TEXT NOT NULL, key TEXT NOT NULL, count BIGINT, prev_count BIGINT,
	window_start TIMESTAMPTZ, tokens DOUBLE PRECISION, last_refill TIMESTAMPTZ, expires_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (prefix, key));
CREATE INDEX idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE TABLE rate_limit_durable (prefix TEXT NOT NULL, key TEXT NOT NULL, count BIGINT, prev_count BIGINT,
	window_start TIMESTAMPTZ, tokens DOUBLE PRECISION, last_refill TIMESTAMPTZ, expires_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (prefix, key));
CREATE INDEX idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);
INSERT INTO rate_limit_ephemeral VALUES
	('spam', 'known', 60, NULL, date_trunc('second', now()), NULL, NULL, date_trunc('second', now()) + interval '1 hour'),
	('bucket', 'known', NULL, NULL, NULL, 12.5, date_trunc('second', now()), date_trunc('second', now()) + interval '1 hour');
INSERT INTO rate_limit_durable VALUES
	('billing', 'known', 70, NULL, date_trunc('second', now()), NULL, NULL, date_trunc('second', now()) + interval '1 hour');
`

// libraryRows are the columns of all rows that the library knows.
const libraryRows = `SELECT 'ephemeral', prefix, key, count, prev_count, window_start, tokens, last_refill, expires_at FROM rate_limit_ephemeral
	UNION ALL SELECT 'durable', prefix, key, count, prev_count, window_start, tokens, last_refill, expires_at FROM rate_limit_durable ORDER BY 1, 2, 3`

// startRoutes are limits of 100 on both tables, by a key that a header names.
func startRoutes() []caddyRoute {
	return []caddyRoute{
		{"/spam", []string{exactly("spam", "algorithm fixed_window", "limit 100 1h", "key {header.X-Key}")}},
		{"/billing", []string{exactly("billing", "algorithm fixed_window", "limit 100 1h", "key {header.X-Key}", "durable")}},
	}
}

// TestTwentyCaddiesStartAtOnce starts twenty processes on a database without
// tables, and on one with the library's. The server hangs until all of them
// wait for it, so that they find the database at the same moment.
func TestTwentyCaddiesStartAtOnce(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	database := func(name, sql string) (dsn string) {
		execute(t, server.DSN("postgres"), "CREATE DATABASE "+name)
		execute(t, server.DSN(name), sql)
		return server.DSN(name)
	}
	right := describeTables(t, database("model", schema.Counters))
	for _, c := range []struct {
		name, tables string
		spam         int // what is left of 100 for the key "known"
		billing      int
	}{
		{"empty", "", 100, 100},
		{"library", libraryTables, 40, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			dsn := database(c.name, c.tables)
			var before []string
			if c.tables != "" {
				before = queryLines(t, dsn, libraryRows)
			}
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			all := startCaddies(t, 20, dsn+"&connect_timeout=60", startRoutes()...)
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
			// The logs do not mention tables that need no change, so look at the database.
			await(t, "the tables to be right", func() bool { return describeTables(t, dsn) == right })
			if c.tables != "" {
				if after := queryLines(t, dsn, libraryRows); strings.Join(after, "\n") != strings.Join(before, "\n") {
					t.Errorf("the rows were\n%s\nand are\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
				}
			}
			for path, want := range map[string]int{"/spam": c.spam, "/billing": c.billing} {
				result := harness.Run(t.Context(), harness.Load{Clients: 20, Requests: 140, Request: func(i int) *http.Request {
					return harness.Get(all[i%len(all)].url+path, "X-Key", "known")
				}})
				if err := result.Err(); err != nil {
					t.Fatal(err)
				}
				if result.Status[200] != want || result.Status[429] != 140-want {
					t.Errorf("%s: %v; want %d×200 and 429 for the rest", path, result, want)
				}
			}
			for _, caddy := range all {
				if err := caddy.Stop(); err != nil {
					t.Error(err)
				}
				for _, line := range caddy.complaints() {
					t.Errorf("a log complains: %s", line)
				}
			}
			log, err := os.ReadFile(server.LogFile())
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(string(log), "\n") {
				if strings.Contains(line, "canceling statement due to user request") {
					continue // a Caddy that stops does not wait for what its registry asks
				}
				if strings.Contains(line, "ERROR:") || strings.Contains(line, "FATAL:") {
					t.Errorf("Postgres complains: %s", line)
				}
			}
		})
	}
}

// describeTables lists the relations of a database with their columns, indexes and
// settings.
func describeTables(t *testing.T, dsn string) string {
	t.Helper()
	return strings.Join(queryLines(t, dsn, `
		SELECT format('%s %s %s %s', c.relname, c.relkind, c.relpersistence, c.reloptions) FROM pg_class c
			WHERE c.relnamespace = 'public'::regnamespace
		UNION ALL SELECT format('%s %s %s %s %s', a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
			WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL SELECT format('%s %s', indexdef, i.indisvalid) FROM pg_indexes JOIN pg_index i ON i.indexrelid = indexname::regclass
			WHERE schemaname = 'public' ORDER BY 1`), "\n")
}

// queryLines runs a query and returns its rows, each as text.
func queryLines(t *testing.T, dsn, sql string) []string {
	t.Helper()
	conn := connect(t, dsn)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT (q.*)::text FROM ("+sql+") q", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return lines
}
