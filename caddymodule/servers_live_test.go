package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/caddymodule"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// onThreeServers is a Caddyfile with counters, policy and history in separate databases.
const onThreeServers = `
		{
			pg_ratelimit {
				dsn COUNTERS
				node_name here
				history {
					dsn HISTORY
				}
			}
		}
		:PORT {
			pg_ratelimit {
				timeout 10s
				audit all
				policy {
					dsn POLICY
					user {header.X-User}
				}
				zone PREFIX {
					match path /zone
					limit 1 1h
				}
			}
		}`

// Counters, policy and history can be in three databases, each of which has only its own rows. The
// registry in the policy's database has the version of the policy that the proxy applies.
func TestThePolicyAndTheHistoryCanBeOnOtherServers(t *testing.T) {
	counters, history := cluster.Open(t), cluster.Open(t)
	policy := policytest.Open(t, policytest.People+`SELECT rate_limit_rule('plan', tiers => '{free}',
		algorithm => 'fixed_window', per_hour => 2);`)
	c := caddytest.Start(t, strings.NewReplacer("COUNTERS", counters, "POLICY", policy, "HISTORY", history).
		Replace(onThreeServers))
	c.Expect(http.StatusOK, "/", "X-User", "alice")
	c.Expect(http.StatusOK, "/zone", "X-User", "alice")
	c.Expect(http.StatusTooManyRequests, "/", "X-User", "alice")
	c.Expect(http.StatusTooManyRequests, "/", "X-User", "alice")
	cluster.Execute(t, policy, "INSERT INTO rate_limit_bans (user_id) VALUES ('alice')")
	await.Within(t, time.Minute, "the ban", func() bool {
		return c.Get("/", "X-User", "alice").Status == http.StatusForbidden
	})
	const counted = "SELECT count(*) FROM rate_limit_ephemeral WHERE prefix LIKE 'rule/plan/%' AND " +
		"key = 'alice' OR key = '127.0.0.1'"
	check.Equal(t, "the counters in their database", cluster.Query[int](t, counters, counted), 2)
	const others = "SELECT (SELECT count(*) FROM rate_limit_rules) + (SELECT count(*) FROM rate_limit_audit)"
	check.Equal(t, "other rows in the database of the counters", cluster.Query[int](t, counters, others), 0)
	check.Equal(t, "the counters in the database of the policy",
		cluster.Query[int](t, policy, "SELECT count(*) FROM rate_limit_ephemeral"), 0)
	if err := caddymodule.FlushHistories(t.Context()); err != nil {
		t.Fatal(err)
	}
	const audited = "SELECT string_agg(DISTINCT outcome || ' ' || prefix, ', ') FROM rate_limit_audit " +
		"WHERE prefix LIKE 'rule/%'"
	check.Equal(t, "the rows of the audit log",
		cluster.Query[string](t, history, audited), "admitted rule/plan, limited rule/plan")
	check.Equal(t, "other rows in the database of the history", cluster.Query[int](t, history,
		"SELECT (SELECT count(*) FROM rate_limit_rules) + (SELECT count(*) FROM rate_limit_ephemeral)"), 0)
	const applied = "SELECT count(report->>'applied') FROM rate_limit_nodes WHERE node = 'here'"
	await.Within(t, time.Minute, "the applied change in the registry",
		func() bool { return cluster.Query[int](t, policy, applied) > 0 })
	check.Equal(t, "proxies with a policy in the registry of the counters",
		cluster.Query[int](t, counters, applied), 0)
}
