package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestAProxyWithoutPrivilegesIsSeen: with on_error allow, both proxies let requests pass without a decision, and the registry
// says so with the statement that helps.
func TestAProxyWithoutPrivilegesIsSeen(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	conn := connect(t, dsn)
	var role string
	if err := conn.QueryRow(t.Context(), "SELECT 'no_grants_' || current_database()").Scan(&role); err != nil {
		t.Fatal(err)
	}
	run := func(sql string) {
		if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	run(schema.Counters + "CREATE ROLE " + role + "; GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_durable, rate_limit_nodes, rate_limit_processes TO " + role +
		"; GRANT SELECT ON rate_limit_pause, rate_limit_secrets TO " + role)
	defer run("DROP OWNED BY " + role + "; DROP ROLE " + role)
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	urls := bothProxies(t, dsn+separator+"options=-c%20role%3D"+role, startBackend(t), "timeout 10s\nprefix caddy\nlimit 1 1h", object{"timeout": "10s", "prefix": "traefik", "limit": "1 1h", "region": "eu"})
	grant := "GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_ephemeral TO " + role
	seen := func(want string) {
		t.Helper()
		await(t, "the registry to say "+want, func() bool {
			var got string
			err := conn.QueryRow(t.Context(), "SELECT string_agg(split_part(node, '/', 2) || ' ' || coalesce(region, '-') || ' ' || coalesce(cannot, 'decides'), ', ' ORDER BY node) FROM rate_limit_nodes").Scan(&got)
			return err == nil && got == want
		})
	}
	seen("caddy - " + grant + ", traefik eu " + grant)
	for proxy, url := range urls {
		if got := answersTo(t, 2, url); got != "200 200" {
			t.Errorf("%s, without privileges: %s", proxy, got)
		}
	}
	run(grant)
	seen("caddy - decides, traefik eu decides")
	for proxy, url := range urls {
		await(t, "the limit of "+proxy, func() bool {
			return harness.Ask(t, harness.Get(url)).Status == http.StatusTooManyRequests
		})
	}
}
