package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// dripsFor sends requests of one user to proxies in turn for some time, and expects that 20 pass
// at once and then one each 3.6 s, whichever proxy it asks.
func dripsFor(t *testing.T, urls []string, long time.Duration) {
	t.Helper()
	const each = 3600 * time.Millisecond
	passed, began := 0, time.Time{}
	for i := 0; began.IsZero() || time.Since(began) < long; i++ {
		asked := time.Now()
		if began.IsZero() {
			began = asked
		}
		a := harness.Ask(t, harness.Get(urls[i%len(urls)], "X-User", "alice"))
		answered := time.Now()
		switch least, most := 20+int(asked.Sub(began)/each)-1, 20+int(answered.Sub(began)/each); {
		case a.Status == http.StatusOK:
			if passed++; passed > most {
				t.Fatalf("request %d is the one of number %d to pass, after %v", i, passed, answered.Sub(began))
			}
		case a.Status != http.StatusTooManyRequests:
			t.Fatalf("%d %s", a.Status, a.Body)
		case passed < least:
			t.Fatalf("request %d is refused, and %d have passed after %v", i, passed, asked.Sub(began))
		default:
			if wait := number(t, a.Header.Get("Retry-After")); wait < 1 || wait > 4 {
				t.Fatalf("Retry-After is %d s", wait)
			}
		}
		if passed >= 20 {
			time.Sleep(50 * time.Millisecond) // the pace of a client that tries again
		}
	}
	if want := 20 + int(long/each); passed != want {
		t.Errorf("%d passed in %v, want %d", passed, long, want)
	}
}

// TestASmallBucketDrips: 1,000 an hour with a burst of 20, as in the help of the command. A lease
// does not change what passes. Both buckets are watched at the same time.
func TestASmallBucketDrips(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, people+`
		SELECT rate_limit_rule('free', family => 'plan', tiers => '{free}', algorithm => 'token_bucket', per_hour => 1000, burst => 20);`)
	byRule := governedProxies(t, dsn)
	var leased []string
	for _, c := range startCaddies(t, 2, cluster.Open(t), caddyRoute{"/*", []string{`pg_ratelimit {
	prefix leased
	key {header.X-User}
	limit 1000 1h
	algorithm token_bucket
	burst 20
	lease 50%
	timeout 30s
	on_error deny
}`}}) {
		leased = append(leased, c.url)
	}
	for name, urls := range map[string][]string{"of a rule": byRule, "with a lease": leased} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dripsFor(t, urls, 16*time.Second) // of 3.6 s each, with more than a second to spare
		})
	}
}
