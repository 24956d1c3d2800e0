package integration

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// customer sends requests that are charged to one counter, and knows how many were.
type customer struct {
	t    *testing.T
	urls []string
	used int64
}

// ask sends a request to a proxy, and returns the quota that the answer names. Whatever the
// quota is, nothing that was used is forgotten.
func (c *customer) ask(url, key string) (quota int64) {
	c.t.Helper()
	a := harness.Ask(c.t, harness.Get(url+"/", "Authorization", "Bearer "+key))
	if a.Status != http.StatusOK {
		c.t.Fatalf("%s answers %d %s", url, a.Status, a.Body)
	}
	c.used++
	quota = number(c.t, a.Header.Get("X-RateLimit-Limit"))
	if left := number(c.t, a.Header.Get("X-RateLimit-Remaining")); left != quota-c.used {
		c.t.Errorf("%s: %d left of %d after %d requests", url, left, quota, c.used)
	}
	return quota
}

// obeys expects that all proxies give the quota to the key within a second.
func (c *customer) obeys(what, key string, want int64) {
	c.t.Helper()
	began := time.Now()
	for _, url := range c.urls {
		for {
			asked := time.Since(began)
			quota := c.ask(url, key)
			if quota == want {
				break
			}
			if asked > time.Second {
				c.t.Errorf("%s: %s gives %d, %v afterwards, want %d", what, url, quota, asked, want)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// TestTheMostSpecificAmountHolds sets and removes overrides: that for the key counts more than
// that for the user, that for the tier, and the amount of the rule, whichever is the largest.
// What was used stays used.
func TestTheMostSpecificAmountHolds(t *testing.T) {
	special, insertSpecial := newKey(t, 1, "alice")
	other, insertOther := newKey(t, 2, "alice")
	dsn := policyDatabase(t, people+insertSpecial+insertOther+`SELECT rate_limit_rule('plan', tiers => '{free,pro}', algorithm => 'fixed_window', per_hour => 20000);`)
	c := &customer{t: t, urls: governedProxies(t, dsn)}
	c.obeys("at first", special, 20000)
	override := func(column, value string, events int) string {
		return fmt.Sprintf("INSERT INTO rate_limit_overrides (rule, limit_name, %s, events) VALUES ('plan', 'per_hour', %s, %d)", column, value, events)
	}
	for _, step := range []struct {
		sql            string
		special, other int64 // the quotas of the two keys
	}{
		{override("tier", "'free'", 10000), 10000, 10000},
		{override("tier", "'pro'", 60000), 10000, 10000},
		{override("user_id", "'alice'", 50000), 50000, 50000},
		{override("key_id", "1", 30000), 30000, 50000},
		{"DELETE FROM rate_limit_overrides WHERE user_id = 'alice'", 30000, 10000},
		{override("user_id", "'alice'", 40000), 30000, 40000},
		{"DELETE FROM rate_limit_overrides WHERE key_id = 1", 40000, 40000},
		{"DELETE FROM rate_limit_overrides WHERE user_id = 'alice'", 10000, 10000},
		{"UPDATE rate_limit_api_keys SET tier = 'pro' WHERE id = 1", 60000, 10000}, // the key has a tier of its own
		{"UPDATE rate_limit_api_keys SET tier = NULL", 10000, 10000},
		{"UPDATE rate_limit_users SET tier = 'pro' WHERE user_id = 'alice'", 60000, 60000}, // an upgrade
		{"DELETE FROM rate_limit_overrides WHERE tier = 'pro'", 20000, 20000},
	} {
		execute(t, dsn, step.sql)
		c.obeys(step.sql, special, step.special)
		c.obeys(step.sql, other, step.other)
	}
	if n := sumOf(t, dsn, "rule/plan/per_hour"); n != c.used {
		t.Errorf("%d were charged, want the %d requests", n, c.used)
	}

	// What is left after an upgrade is the difference, to the last request.
	c.obeys("before the quota is used up", special, 20000)
	execute(t, dsn, override("key_id", "1", int(c.used)))
	for _, url := range c.urls {
		await(t, "a refusal", func() bool {
			a := harness.Ask(t, harness.Get(url+"/", "Authorization", special))
			if a.Status == http.StatusOK {
				c.used++
			}
			return a.Status == http.StatusTooManyRequests
		})
	}
	execute(t, dsn, "UPDATE rate_limit_overrides SET events = "+strconv.FormatInt(c.used+5, 10)+" WHERE key_id = 1")
	awaitObeyed(t, dsn, len(c.urls))
	passed := 0
	for i := range 20 {
		if harness.Ask(t, harness.Get(c.urls[i%len(c.urls)]+"/", "Authorization", special)).Status == http.StatusOK {
			passed++
		}
	}
	if passed != 5 {
		t.Errorf("%d passed after 5 more were bought", passed)
	}
}
