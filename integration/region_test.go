package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
)

// TestACaddyInARegionSharesTheLimitsOfItsHome: a Traefik at home and a Caddy in a region 80 ms away count in the home
// database. The Caddy follows the policy that is copied to its region. Together they pass what a rule allows, before
// and after the rule changes at home.
func TestACaddyInARegionSharesTheLimitsOfItsHome(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	databases := map[string]*admin.Database{}
	dsns := map[string]string{}
	for _, name := range []string{"home", "eu"} {
		c := cluster.Private(t, cluster.Options{Config: map[string]string{"wal_level": "logical"}, HBA: "local all all trust\nhost all,replication all 127.0.0.1/32 trust\n"})
		dsns[name] = c.DSN("postgres")
		db, err := admin.Open(ctx, dsns[name])
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		m, err := db.Migrate(ctx)
		if m.Policy == "not possible" {
			t.Skip("this server is older than Postgres 15")
		}
		if err != nil {
			t.Fatal(err)
		}
		databases[name] = db
	}
	cluster.Execute(t, dsns["home"], `INSERT INTO rate_limit_tiers (tier) VALUES ('free'); INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free'), ('bob', 'free');
SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_hour => 40)`)
	if _, err := databases["home"].Publish(ctx); err != nil {
		t.Fatal(err)
	}
	if err := databases["eu"].Subscribe(ctx, "eu", dsns["home"], false); err != nil {
		t.Fatal(err)
	}
	backend := startBackend(t)
	tr := startTraefik(t, []route{{"/", backend, object{"dsn": dsns["home"], "timeout": "30s", "onError": "deny",
		"policy": object{"user": "{header.X-User}", "refresh": "50ms"}}}})
	_, far := slownet.ListenFor(t, dsns["home"], 80*time.Millisecond)
	address := harness.FreeAddress(t)
	c := launchConfig(t, buildCaddy(t), address, caddyfile(address, far, []caddyRoute{{"/*", []string{
		fmt.Sprintf("route {\n\tpg_ratelimit {\n\t\ttimeout 30s\n\t\ton_error deny\n\t\tpolicy {\n\t\t\tdsn %s\n\t\t\tuser {header.X-User}\n\t\t\trefresh 50ms\n\t\t}\n\t}\n\treverse_proxy %s\n}",
			dsns["eu"], strings.TrimPrefix(backend, "http://"))}}}))
	c.AwaitAddress(t, address)
	urls := []string{c.url, tr.url}
	for _, url := range urls {
		await(t, "the policy at "+url, func() bool {
			return harness.Ask(t, harness.Get(url, "X-User", "nobody")).Status != http.StatusServiceUnavailable
		})
	}
	share := func(user string, quota int) {
		t.Helper()
		result := harness.Run(ctx, harness.Load{Clients: 16, Requests: 2 * quota, Request: func(i int) *http.Request {
			return harness.Get(urls[i%2], "X-User", user)
		}})
		if err := result.Err(); err != nil {
			t.Fatal(err)
		}
		passed := [2]int{}
		for i := range result.Replies {
			if result.Replies[i].Status == http.StatusOK {
				passed[i%2]++
			}
		}
		t.Logf("%s: %d passed in the region, and %d at home", user, passed[0], passed[1])
		if passed[0]+passed[1] != quota || passed[0] == 0 {
			t.Errorf("%s: %v requests passed, want %d together, and some in the region", user, passed, quota)
		}
	}
	share("ann", 40)
	cluster.Execute(t, dsns["home"], "SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_hour => 60)")
	for _, url := range urls {
		await(t, "the change at "+url, func() bool {
			return harness.Ask(t, harness.Get(url, "X-User", "ann")).Header.Get("X-RateLimit-Limit") == "60"
		})
	}
	share("bob", 60)
}
