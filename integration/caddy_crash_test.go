package integration

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestCrashLosesNothingDurable kills Postgres while requests are counted in both tables.
// With synchronous_commit, the durable table still counts each request that passed. The
// ephemeral table is empty.
func TestCrashLosesNothingDurable(t *testing.T) {
	const events = 1000000
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	var routes []caddyRoute
	kinds := []string{"sliding_window", "fixed_window", "token_bucket"}
	for _, algorithm := range kinds {
		lines := []string{"algorithm " + algorithm, "limit 1000000 1h", "key all", "on_error deny"}
		routes = append(routes,
			caddyRoute{"/durable/" + algorithm, []string{limit(algorithm, append(lines, "durable", "synchronous_commit")...)}},
			caddyRoute{"/ephemeral/" + algorithm, []string{limit(algorithm, lines...)}})
	}
	c := startCaddy(t, dsn, routes...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan *harness.Result, 1)
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 16, Every: time.Millisecond, Request: func(i int) *http.Request {
			return harness.Get(c.url + routes[i%len(routes)].path)
		}})
	}()
	for _, table := range tables {
		await(t, "counts in "+table.name, func() bool { return counted(t, dsn, table.name, kinds[0], events) >= 100 })
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	cancel()
	result := <-done
	if err := result.Err(); err != nil {
		t.Fatal(err)
	}
	// Caddy must not add rows to those that survived.
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	passed, sent := map[string]int64{}, map[string]int64{}
	for i, reply := range result.Replies {
		if reply.Started {
			sent[routes[i%len(routes)].path]++
		}
		if reply.Status == http.StatusOK {
			passed[routes[i%len(routes)].path]++
		}
	}
	for _, algorithm := range kinds {
		path := "/durable/" + algorithm
		n := counted(t, dsn, "rate_limit_durable", algorithm, events)
		if passed[path] == 0 || n < passed[path] || n > sent[path] {
			t.Errorf("%s: %d passed of %d sent; the table has %d", algorithm, passed[path], sent[path], n)
		}
		t.Logf("%s: %d passed of %d sent; the durable table has %d", algorithm, passed[path], sent[path], n)
		if passed["/ephemeral/"+algorithm] == 0 {
			t.Errorf("nothing was counted in the ephemeral table for %s", algorithm)
		}
	}
	if n := queryInt(t, dsn, "SELECT count(*) FROM rate_limit_ephemeral"); n != 0 {
		t.Errorf("the ephemeral table has %d rows after the crash", n)
	}
}

// counted is how much of a quota the rows of a prefix have used, in the columns of any
// algorithm. It is 0 before there is a table.
func counted(t *testing.T, dsn, table, prefix string, quota int) int64 {
	t.Helper()
	if queryInt(t, dsn, "SELECT coalesce(to_regclass($1)::oid::bigint, 0)", table) == 0 {
		return 0
	}
	return queryInt(t, dsn, `SELECT coalesce(sum(coalesce(count, 0) + coalesce(prev_count, 0) + coalesce($2::bigint - tokens, 0)), 0)::bigint
		FROM `+table+` WHERE prefix = $1`, prefix, quota)
}
