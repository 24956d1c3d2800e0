package integration

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// sendAs sends requests from many clients to the proxies in turn, and returns how many of each
// user pass. Any other answer than 200 and 429 fails the test.
func sendAs(t *testing.T, urls []string, path string, requests int, users ...string) (passed map[string]int64) {
	t.Helper()
	user := func(i int) string { return users[i/len(urls)%len(users)] }
	r := harness.Run(t.Context(), harness.Load{Clients: 48, Requests: requests, Request: func(i int) *http.Request {
		return harness.Get(urls[i%len(urls)]+path, "X-User", user(i))
	}})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Status[http.StatusOK]+r.Status[http.StatusTooManyRequests] != requests {
		t.Fatalf("answers other than 200 and 429: %v", r)
	}
	passed = map[string]int64{}
	for i, reply := range r.Replies {
		if reply.Status == http.StatusOK {
			passed[user(i)]++
		}
	}
	return passed
}

// sumOf is what is counted under a prefix.
func sumOf(t *testing.T, dsn, prefix string) int64 {
	t.Helper()
	return queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral WHERE prefix = $1", prefix)
}

// One request goes through bans, an exempt rule and a block rule that do not match, two
// families with three limits each, a zone and a shadow rule.
func TestOneRequestThroughEverything(t *testing.T) {
	dsn := policyDatabase(t, people+`
		INSERT INTO rate_limit_bans (user_id) VALUES ('mallory');
		INSERT INTO rate_limit_bans (network) SELECT format('198.51.%s.0/24', i)::cidr FROM generate_series(0, 200) AS i;
		SELECT rate_limit_rule('health', action => 'exempt', paths => '{/health}');
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('plan', family => 'plan', priority => 700, tiers => '{free}', algorithm => 'fixed_window', per_hour => 100, per_day => 1000, per_month => 10000);
		SELECT rate_limit_rule('other_plan', family => 'plan', priority => 100, algorithm => 'fixed_window', per_hour => 1);
		SELECT rate_limit_rule('protect', family => 'protect', paths => '{/api/*}', count_by => '{all}', algorithm => 'fixed_window', per_hour => 1000, per_day => 60, per_month => 10000);
		SELECT rate_limit_rule('trial', mode => 'shadow', algorithm => 'fixed_window', per_hour => 30);`)
	urls := governedProxies(t, dsn)
	if a := harness.Ask(t, harness.Get(urls[0]+"/api/x", "X-User", "mallory")); a.Status != http.StatusForbidden {
		t.Errorf("a banned user gets %d", a.Status)
	}
	if passed := sendAs(t, urls, "/api/x", 300, "alice")["alice"]; passed != 60 {
		t.Errorf("%d passed, want 60", passed)
	}
	for prefix, want := range map[string]int64{
		"rule/plan/per_hour": 60, "rule/plan/per_day": 60, "rule/plan/per_month": 60, "rule/protect/per_hour": 60, "rule/protect/per_day": 60,
		"rule/protect/per_month": 60, "zone": 60, "rule/trial/per_hour": 30, "rule/other_plan/per_hour": 0,
	} {
		if n := sumOf(t, dsn, prefix); n != want {
			t.Errorf("%s was charged %d, want %d", prefix, n, want)
		}
	}
	for i, url := range urls {
		if a := harness.Ask(t, harness.Get(url+"/api/x", "X-User", "alice")); a.Status != http.StatusTooManyRequests {
			t.Errorf("proxy %d admits a request beyond the quota: %d", i, a.Status)
		}
	}
}
