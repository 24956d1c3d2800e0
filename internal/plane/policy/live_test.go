package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A hit and its terms have all values of the rule and the limit in the database. After the end of its valid
// time, the rule causes no hit.
func TestHitHasAllRuleValues(t *testing.T) {
	d := newTestDB(t)
	d.exec("UPDATE rate_limit_tiers SET comment = 'x'")
	d.exec(`SELECT rate_limit_rule('r', family => 'f', priority => 7, hosts => '{api.example.com}',
		paths => '{/}', methods => '{GET}', tiers => '{anonymous}',
		networks => '{192.0.2.0/24,2001:db8::/32}', count_by => '{host}', cost => 3, status => 402,
		message => 'pay "now"', retry_after => '90 s', valid => '[2020-01-01,2999-01-01)',
		algorithm => 'gcra', per_second => 10, burst => 4, durable => true)`)
	p := d.newPolicy(policy.Settings{})
	refresh(t, p)
	facts := policy.Facts{DefaultTier: "anonymous", Method: "GET", Host: "api.example.com", Path: "/",
		Address: netip.MustParseAddr("2001:db8::1")}
	var v policy.Verdict
	err := p.Evaluate(t.Context(), testTimeout, "", "", &facts, &v)
	if err != nil || len(v.Hits) != 1 {
		t.Fatalf("Evaluate: got %+v and the error %v, want one hit and no error", v, err)
	}
	hit, terms := v.Hits[0], v.Terms[0]
	limit := *hit.Limit
	want := ratelimit.Limit{Prefix: "rule/r/per_second", Algorithm: ratelimit.GCRA, Events: 10,
		Window: time.Second, Burst: 4, Durable: true}
	if limit != want || hit.Cost != 3 || hit.Key != "api.example.com" {
		t.Errorf("got the hit %+v on %+v, want %+v", hit, limit, want)
	}
	got := fmt.Sprintf("%d %s %v from the %s", terms.Status, terms.Message, terms.RetryAfter,
		terms.AmountSource)
	check.Equal(t, "the terms", got, `402 pay "now" 1m30s from the rule`)
	d.exec("UPDATE rate_limit_rules SET valid = '(,2020-01-01)'")
	refresh(t, p)
	check.Equal(t, "after the rule has ended", verdictOf(t, p, "", ""), " anonymous")
}
