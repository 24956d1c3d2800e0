package integration

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// A plan, a price and a parent are in force in both proxies within a second after COMMIT, and ROLLBACK leaves
// nothing: the proxies have then applied a later change, but not this one.
func TestPlansPricesAndParentsHoldAtOnce(t *testing.T) {
	t.Parallel()
	dsn := policytest.Open(t, `SELECT rate_limit_tier('free'), rate_limit_tier('pro');
		SELECT rate_limit_rule('plan', tiers => '{free,pro}', limits => '{month=0 money/1mo calendar}');
		SELECT rate_limit_override('plan', 'month', '100', tier => 'pro');
		SELECT rate_limit_user('ann', tier => 'pro'), rate_limit_user('broke', tier => 'free');`)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"usage":{"prompt_tokens":1,"completion_tokens":1}}`))
	}))
	t.Cleanup(upstream.Close)
	var urls []string
	users := object{"policy": object{"user": "{header.X-User}"}}
	for _, url := range bothProxies(t, dsn, upstream.URL, users) {
		urls = append(urls, url)
	}
	request := func(url string) *http.Request {
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"model":"m1","max_tokens":9}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", "ann")
		return r
	}
	awaitPolicyApplied(t, dsn, 2)
	for _, step := range []struct {
		sql           string
		before, after int
	}{
		{"SELECT rate_limit_price('m*', 0.5, 2)", 400, 200},
		{"SELECT rate_limit_user('ann', tier => 'free')", 200, 429},
		{"SELECT rate_limit_user('ann', tier => 'pro')", 429, 200},
		{"SELECT rate_limit_user('ann', parent => 'broke')", 200, 429},
		{"SELECT rate_limit_user('ann', reset => '{parent}')", 429, 200},
		{"SELECT rate_limit_override('plan', 'month', '0', user_id => 'ann')", 200, 429},
		{"SELECT rate_limit_delete_override('plan', 'month', user_id => 'ann')", 429, 200},
		{"SELECT rate_limit_delete_price('m*')", 200, 400},
	} {
		cluster.Execute(t, dsn, "BEGIN; "+step.sql+"; ROLLBACK; SELECT rate_limit_tier('later', rank => "+
			"1 + (SELECT coalesce(max(rank), 0) FROM rate_limit_tiers))")
		awaitPolicyApplied(t, dsn, 2)
		for _, url := range urls {
			check.Equal(t, url+" after ROLLBACK of "+step.sql,
				statusOf(t, http.DefaultClient, request(url)), step.before)
		}
		changeOf(t, dsn, step.sql, urls, step.before, step.after, request)
	}
}
