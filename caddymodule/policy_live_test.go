package caddymodule_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
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

func startPolicy(t *testing.T, dsn string, limits ...string) *caddytest.Caddy {
	t.Helper()
	return caddytest.Start(t,
		strings.NewReplacer("DSN", dsn, "LIMITS", strings.Join(limits, "\n")).Replace(policySite))
}

// A refusal for a missing price names the model to the client, in the audit log and in the log, at most ten
// models in a minute. A long name is cut, and no API key and no HTML comes out of it.
func TestModelsWithoutPricesAreNamed(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+`SELECT rate_limit_rule('plan', tiers => '{free}',
		limits => '{month=5 money/1mo calendar}')`)
	c := startPolicy(t, dsn, "audit denied")
	key := "prl_" + strings.Repeat("a1", 16)
	names := map[string]string{"gpt-5": "gpt-5", strings.Repeat("x", 300): strings.Repeat("x", 100),
		strings.Repeat("é", 60): strings.Repeat("é", 50), `say "<b>"`: `say "<b>"`, key: "(key)",
		"a\nb": "a\nb"}
	for i := range 9 {
		names[fmt.Sprint("model-", i)] = fmt.Sprint("model-", i)
	}
	for model, want := range names {
		for range 2 {
			quoted, _ := json.Marshal(model)
			r := harness.Get("http://127.0.0.1:"+c.Port+"/", "X-User", "alice")
			r.Method = http.MethodPost
			r.Body = io.NopCloser(strings.NewReader(`{"model":` + string(quoted) + `}`))
			shown, _ := json.Marshal(want)
			message, _ := json.Marshal("The model " + string(shown) + " has no price")
			a := harness.Ask(t, r)
			if !strings.Contains(a.Body, `"message":`+string(message)) || strings.Contains(a.Body, "<b>") {
				t.Errorf("the body is %s, want the message %s", a.Body, message)
			}
		}
	}
	for _, want := range names {
		await.Within(t, time.Minute, "the audit log", func() bool {
			return cluster.Query[bool](t, dsn, `SELECT coalesce(sum(count), 0) = 2 FROM rate_limit_audit
				WHERE reason = 'no_price' AND prefix = 'rule/plan' AND model = $1`, want)
		})
	}
	lines := c.LogEntries("a request is refused, because its model has no price")
	check.Equal(t, "the number of lines", len(lines), 10)
	for _, line := range lines {
		if text := fmt.Sprint(line["error"]); !strings.HasPrefix(text, `model: "`) || len(text) > 200 {
			t.Errorf("the log has %s, want a short name in quotation marks", text)
		}
	}
}

// A renamed rule goes on with its counters, and a new rule with its old name has counters of its own.
func TestARenamedRuleKeepsItsCounts(t *testing.T) {
	const plan = ", algorithm => 'fixed_window', per_hour => 3);"
	dsn := policytest.Open(t, policytest.People+"SELECT rate_limit_rule('plan', tiers => '{free}'"+plan)
	c := startPolicy(t, dsn)
	c.Expect(http.StatusOK, "/", "X-User", "alice")
	c.Expect(http.StatusOK, "/", "X-User", "alice")
	cluster.Execute(t, dsn, "SELECT rate_limit_rename('rule', 'plan', 'small');"+
		"SELECT rate_limit_rule('plan', tiers => '{pro}'"+plan)
	await.Within(t, time.Minute, "the new rule", func() bool {
		return strings.Contains(c.Get("/", "X-User", "bob").Body, "|plan")
	})
	a := c.Expect(http.StatusOK, "/", "X-User", "alice")
	check.Equal(t, "the renamed rule's answer", a.Body, "alice|free||small")
	c.Expect(http.StatusTooManyRequests, "/", "X-User", "alice")
	const rows = "SELECT string_agg(concat_ws(' ', rule, key, used), ', ' ORDER BY rule) FROM rate_limit_used"
	check.Equal(t, "what is used", cluster.Query[string](t, dsn, rows), "plan bob 1, small alice 3")
	checkMetrics(t, map[string]float64{"decisions_total admitted passed rule/small/per_hour": 1,
		"decisions_total limited rule/small/per_hour": 1})
}

// A limit that counts in another unit has counters of its own, also if it was deleted in between.
func TestALimitInAnotherUnitCountsFromZero(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+`SELECT rate_limit_rule('plan', tiers => '{free}',
		limits => '{a=2/24h}', algorithm => 'fixed_window');`)
	c := startPolicy(t, dsn)
	const again = "BEGIN; SELECT rate_limit_rule('plan', mode => 'off', limits => '{a=}'); " +
		"SELECT rate_limit_rule('plan', mode => 'enforce', limits => '{a=2 tokens/24h}'); COMMIT"
	for _, change := range []string{"SELECT rate_limit_limit('plan', 'a', '2 tokens/24h')",
		"SELECT rate_limit_limit('plan', 'a', '2/24h')", again} {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusOK} {
			await.Within(t, time.Minute, fmt.Sprint(status, " around ", change), func() bool {
				r := harness.Get("http://127.0.0.1:"+c.Port+"/", "X-User", "alice")
				r.Method = http.MethodPost
				return harness.Ask(t, r).Status == status
			})
			if status != http.StatusOK {
				cluster.Execute(t, dsn, change)
			}
		}
	}
}
