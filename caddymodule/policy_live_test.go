package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// policySite is a Caddyfile with a policy, which responds with the placeholders. LIMITS stands for further
// limits.
const policySite = `
	:PORT {
		pg_ratelimit {
			dsn DSN
			timeout 10s
			on_error deny
			policy {
				api_key {header.Authorization}
				user {header.X-User}
				unknown_key reject
			}
			LIMITS
		}
		respond "{http.pg_ratelimit.user}|{http.pg_ratelimit.tier}|` +
	`{http.pg_ratelimit.key_id}|{http.pg_ratelimit.rule}"
	}`

func startPolicy(t *testing.T, dsn string, limits ...string) *live {
	t.Helper()
	return start(t, strings.NewReplacer("DSN", dsn, "LIMITS", strings.Join(limits, "\n")).Replace(policySite))
}

// Limits of rules and zones of the configuration are charged together or not at all.
func TestAPolicyAndZonesAreAllOrNothing(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+`SELECT rate_limit_rule('plan', tiers => '{free}',
		algorithm => 'fixed_window', per_hour => 10);
		SELECT rate_limit_rule('shadow', mode => 'shadow', algorithm => 'fixed_window', per_hour => 2);`)
	c := startPolicy(t, dsn, "zone PREFIX {\nkey all\nlimit 4 1h\nalgorithm fixed_window\n}")
	for i := range 6 {
		a := c.get("/", "X-User", "alice")
		if passes := i < 4; (a.Status == http.StatusOK) != passes {
			t.Errorf("request %d: status %d, want 200 for the first 4 requests alone", i, a.Status)
		}
		check.Equal(t, "X-RateLimit-Limit", number(t, a, "X-RateLimit-Limit"), 4)
	}
	for prefix, want := range map[string]int{"rule/plan/per_hour": 4, "rule/shadow/per_hour": 2,
		c.prefix(): 4} {
		const charged = "SELECT coalesce(sum(count), 0)::int FROM rate_limit_ephemeral WHERE prefix = $1"
		check.Equal(t, "the charge of "+prefix, cluster.Query[int](t, dsn, charged, prefix), want)
	}
	check.Equal(t, "the log's entries about the limit in the mode shadow",
		len(c.logEntries("a limit in the mode shadow would have refused")), 4)
	checkMetrics(t, map[string]float64{
		"policy_requests_total admitted passed charged": 6, "policy_rules": 2, "policy_wrong_rules": 0,
		"policy_identities": 1,
		"decisions_total admitted passed rule/plan/per_hour":          4,
		"decisions_total admitted passed rule/shadow/per_hour shadow": 2,
		"decisions_total limited passed rule/shadow/per_hour shadow":  4,
		"decisions_total limited " + c.prefix():                       2,
	})
}

// A renamed rule goes on with its counters, and a new rule with its old name has counters of its own.
func TestARenamedRuleKeepsItsCounts(t *testing.T) {
	const plan = ", algorithm => 'fixed_window', per_hour => 3);"
	dsn := policytest.Open(t, policytest.People+"SELECT rate_limit_rule('plan', tiers => '{free}'"+plan)
	c := startPolicy(t, dsn)
	c.expect(http.StatusOK, "/", "X-User", "alice")
	c.expect(http.StatusOK, "/", "X-User", "alice")
	cluster.Execute(t, dsn, "SELECT rate_limit_rename('rule', 'plan', 'small');"+
		"SELECT rate_limit_rule('plan', tiers => '{pro}'"+plan)
	await.Within(t, time.Minute, "the new rule", func() bool {
		return strings.Contains(c.get("/", "X-User", "bob").Body, "|plan")
	})
	a := c.expect(http.StatusOK, "/", "X-User", "alice")
	check.Equal(t, "the renamed rule's answer", a.Body, "alice|free||small")
	c.expect(http.StatusTooManyRequests, "/", "X-User", "alice")
	const rows = "SELECT string_agg(concat_ws(' ', rule, key, used), ', ' ORDER BY rule) FROM rate_limit_used"
	check.Equal(t, "what is used", cluster.Query[string](t, dsn, rows), "plan bob 1, small alice 3")
	checkMetrics(t, map[string]float64{"decisions_total admitted passed rule/small/per_hour": 1,
		"decisions_total limited rule/small/per_hour": 1})
}
