package integration

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
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

// A request of a free user to /api/v1 is charged to the plan and to the limit on that path, or
// to neither.
func TestTwoFamiliesAreChargedTogether(t *testing.T) {
	dsn := policyDatabase(t, people+`
		SELECT rate_limit_rule('free_tier_limit', family => 'plan', tiers => '{free}', algorithm => 'token_bucket', per_hour => 20, burst => 20, priority => 700);
		SELECT rate_limit_rule('api_v1_limit', family => 'protect', paths => '{/api/v1/*}', algorithm => 'sliding_window', per_second => 100, priority => 600);`)
	urls := governedProxies(t, dsn)
	for _, url := range urls {
		if a := harness.Ask(t, harness.Get(url+"/api/v1/x", "X-User", "alice")); a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Limit") != "20" {
			t.Fatalf("%s answers %d %v", url, a.Status, a.Header)
		}
	}
	if left := queryInt(t, dsn, "SELECT tokens::bigint FROM rate_limit_ephemeral WHERE prefix = 'rule/free_tier_limit/per_hour' AND key = 'alice'"); left != 17 {
		t.Errorf("the plan has %d tokens left after 3 requests of 20", left)
	}
	if keys := queryInt(t, dsn, "SELECT count(*) FROM rate_limit_ephemeral WHERE prefix = 'rule/api_v1_limit/per_second' AND key = 'alice'"); keys != 1 {
		t.Errorf("%d counters of the path, want one", keys)
	}
	// With a limit on the path that all share and that lasts, the sums show each charge.
	execute(t, dsn, `DELETE FROM rate_limit_rules WHERE name = 'api_v1_limit';
		SELECT rate_limit_rule('api_v1_hour', family => 'protect', paths => '{/api/v1/*}', count_by => '{all}', algorithm => 'fixed_window', per_hour => 100, priority => 600);`)
	awaitObeyed(t, dsn, len(urls))
	zone := sumOf(t, dsn, "zone")
	passed := sendAs(t, urls, "/api/v1/x", 900, "alice", "bob")
	if passed["alice"]+passed["bob"] != 100 || passed["alice"] > 17 {
		t.Errorf("%v passed, want 100 of both and at most 17 of alice", passed)
	}
	left := queryInt(t, dsn, "SELECT tokens::bigint FROM rate_limit_ephemeral WHERE prefix = 'rule/free_tier_limit/per_hour' AND key = 'alice'")
	if n := sumOf(t, dsn, "rule/api_v1_hour/per_hour"); n != 100 || left != 17-passed["alice"] || sumOf(t, dsn, "zone")-zone != 100 {
		t.Errorf("the path was charged %d, the zone %d, and the plan has %d tokens left; %v passed", n, sumOf(t, dsn, "zone")-zone, left, passed)
	}
}

// Each of four limits of one rule holds exactly, whichever is the tightest, and a request takes
// one round trip.
func TestFourLimitsOfOneRule(t *testing.T) {
	dsn := policyDatabase(t, people+`SELECT rate_limit_rule('four', algorithm => 'fixed_window', per_second => 1000, per_minute => 1000, per_hour => 1000, per_day => 1000);`)
	_, slow := slownet.ListenFor(t, dsn, roundTrip)
	urls := governedProxies(t, slow)
	want := int64(0)
	for _, step := range []struct{ set, limit string }{{"per_day => 20", "per_day"}, {"per_hour => 40, per_day => 1000", "per_hour"}} {
		execute(t, dsn, "SELECT rate_limit_rule('four', "+step.set+")")
		awaitObeyed(t, dsn, len(urls))
		want += 20
		sendAs(t, urls, "/", 300, "alice")
		for _, limit := range []string{"per_day", "per_hour", step.limit} {
			if n := sumOf(t, dsn, "rule/four/"+limit); n != want {
				t.Errorf("%s: %s is charged %d, want %d", step.set, limit, n, want)
			}
		}
	}
	// Short windows end during a test. So in each window of the second or the minute at most
	// the quota passes, and at least once the whole of it does.
	for _, step := range []struct{ set, limit string }{{"per_minute => 30, per_hour => 1000", "per_minute"}, {"per_second => 10, per_minute => 1000", "per_second"}} {
		execute(t, dsn, "SELECT rate_limit_rule('four', "+step.set+")")
		awaitObeyed(t, dsn, len(urls))
		quota := int64(30)
		window := time.Minute
		if step.limit == "per_second" {
			quota, window = 10, time.Second
		}
		began := time.Now()
		passed := sendAs(t, urls, "/", 300, "bob")["bob"]
		windows := int64(time.Since(began)/window) + 2
		if passed < min(quota, 10) || passed > quota*windows {
			t.Errorf("%s: %d passed in %d windows at most", step.set, passed, windows)
		}
	}
	checkRoundTrips(t, urls, "/", "X-User", "carol")
}

// roundTrip is the time that a slow network takes. Everything else that a request needs takes
// less, so that a second round trip would show.
const roundTrip = 150 * time.Millisecond

// checkRoundTrips expects that a request takes one round trip.
func checkRoundTrips(t *testing.T, urls []string, path string, headers ...string) {
	t.Helper()
	for _, url := range urls {
		var took []time.Duration
		for range 7 {
			began := time.Now()
			if a := harness.Ask(t, harness.Get(url+path, headers...)); a.Status != http.StatusOK {
				t.Fatalf("%s answers %d %v", url, a.Status, a.Header)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		if took[3] < roundTrip || took[3] >= 2*roundTrip {
			t.Errorf("%s: a request takes %v, want one round trip of %v", url, took, roundTrip)
		}
	}
}

// One request goes through bans, an exempt rule and a block rule that do not match, two
// families with three limits each, a zone and a shadow rule, in one round trip.
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
	_, slow := slownet.ListenFor(t, dsn, roundTrip)
	urls := governedProxies(t, slow)
	if a := harness.Ask(t, harness.Get(urls[0]+"/api/x", "X-User", "mallory")); a.Status != http.StatusForbidden {
		t.Errorf("a banned user gets %d", a.Status)
	}
	checkRoundTrips(t, urls, "/api/x", "X-User", "alice") // 21 requests of the 60
	if passed := sendAs(t, urls, "/api/x", 300, "alice")["alice"]; passed != 39 {
		t.Errorf("%d passed, want the 39 that are left of 60", passed)
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
