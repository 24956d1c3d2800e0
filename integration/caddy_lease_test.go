package integration

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// charged is what all rows of fixed and sliding windows were charged.
const charged = "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral"

// leasedCaddy starts a Caddy that can be reloaded, and returns it and its reload.
func leasedCaddy(t *testing.T, dsn string) (c *caddy, reload func()) {
	t.Helper()
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	config := caddyfile(address, dsn, []route{{"/", "", decideAlways(object{
		"prefix": "leased", "algorithm": "fixed_window", "limit": "30000 1h", "lease": "5%", "audit": "all"})}})
	config = harness.Replace(t, config, "admin off", "admin "+admin)
	c = launchConfig(t, buildCaddy(t), address, config)
	c.AwaitAddress(t, address)
	return c, func() {
		t.Helper()
		if answer := loadConfig(t, admin, config); answer.Status != http.StatusOK {
			t.Fatalf("the reload: %d %s", answer.Status, answer.Body)
		}
		// Caddy answers before the old server has closed its listener. A connection that waits
		// for this listener would fail.
		awaitOneListener(t, address)
	}
}

// TestCaddyGivesLeasesBack: leases survive a reload. Some time after the last request, and after
// SIGTERM, the row says what was admitted. So does the history.
func TestCaddyGivesLeasesBack(t *testing.T) {
	dsn := cluster.Open(t)
	c, reload := leasedCaddy(t, dsn)
	passed := int64(0)
	load := func(d time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		result := harness.Run(ctx, harness.Load{Clients: 8, Every: 500 * time.Microsecond, Request: func(int) *http.Request { return harness.Get(c.url) }})
		if err := result.Err(); err != nil || result.Status[200] != result.Sent {
			t.Fatalf("%v %v", result, err)
		}
		passed += int64(result.Sent)
	}
	await(t, "units that are held", func() bool { load(time.Second); return cluster.Query[int64](t, dsn, charged) > passed })
	reload()
	load(time.Second)
	await(t, "the units to go back", func() bool { return cluster.Query[int64](t, dsn, charged) == passed })
	load(time.Second)
	reload() // the stores of the configuration before stay open for a while
	await(t, "units that are held before SIGTERM", func() bool { load(time.Second / 2); return cluster.Query[int64](t, dsn, charged) > passed })
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := cluster.Query[int64](t, dsn, charged); got != passed {
		t.Errorf("%d passed, and %d are charged after SIGTERM", passed, got)
	}
	for _, sql := range []string{"SELECT sum(count)::bigint FROM rate_limit_audit", "SELECT sum(requests)::bigint FROM rate_limit_metrics WHERE granularity = 'minute'"} {
		if got := cluster.Query[int64](t, dsn, sql); got != passed {
			t.Errorf("%d passed, and after SIGTERM %s gives %d", passed, sql, got)
		}
	}
	writes := cluster.Query[int64](t, dsn, "SELECT (n_tup_ins + n_tup_upd)::bigint FROM pg_stat_user_tables WHERE relname = 'rate_limit_ephemeral'")
	if t.Logf("%d requests, %d writes", passed, writes); writes > passed/2 {
		t.Error("most requests were written")
	}
}
