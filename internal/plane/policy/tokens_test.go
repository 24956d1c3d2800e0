package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// tokenRule is a rule with a limit of requests and one of tokens.
func tokenRule(events int64) policy.Rule {
	return policy.Rule{Name: "llm", CountBy: []string{"all"}, Limits: []policy.RuleLimit{
		{Name: "rpm", Limit: ratelimit.Limit{Events: 60, Window: time.Minute}},
		{Name: "tpm", Unit: option.Tokens, Output: 300, Limit: ratelimit.Limit{Events: events,
			Window: time.Minute}},
	}}
}

// Limits of tokens charge no request that gets no new answer of a model, even if nothing passes them.
func TestLimitsOfTokensChargeNewAnswersOnly(t *testing.T) {
	for _, c := range []struct {
		method string
		events int64
		want   string // the limits of the hits, and the reason of a refusal
	}{
		{method: "POST", events: 100, want: "rpm tpm "},
		{method: "PATCH", events: 100, want: "rpm tpm "},
		{method: "GET", events: 100, want: "rpm "}, {method: "HEAD", events: 100, want: "rpm "},
		{method: "OPTIONS", events: 100, want: "rpm "},
		{method: "get", events: 100, want: "rpm tpm "},
		{method: "POST", events: 0, want: "no_quota"}, {method: "GET", events: 0, want: "rpm "},
	} {
		s := policy.Compile([]policy.Rule{tokenRule(c.events)}, nil, nil, 100)
		var v policy.Verdict
		for range 2 { // the second verdict may come from memory
			policy.EvaluateFound(s, &policy.Facts{Method: c.method, Path: "/"}, nil, time.Now(), &v)
			got := ""
			for _, m := range v.Terms {
				got += m.Limit + " "
			}
			got += string(v.Reason)
			check.Equal(t, fmt.Sprint(c.method, " ", c.events), got, c.want)
		}
	}
}

// Refusals have the form for clients of models where a rule counts tokens for any sender, among many rules.
func TestRulesThatCountTokensAreFoundForAnySender(t *testing.T) {
	rules := []policy.Rule{tokenRule(100)}
	rules[0].Tiers, rules[0].Methods = []string{"pro"}, []string{"POST"}
	rules[0].Hosts, rules[0].Paths = []string{"*.llm.test"}, []string{"/v1/*"}
	rules[0].Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for i := range 50 {
		r := tokenRule(100)
		r.Name, r.Paths, r.Tiers = fmt.Sprint("other", i), []string{fmt.Sprint("/other/", i)}, []string{"pro"}
		rules = append(rules, r)
	}
	requests := tokenRule(100)
	requests.Name, requests.Limits = "requests", requests.Limits[:1]
	s := policy.Compile(append(rules, requests), nil, nil, 0)
	for _, c := range []struct {
		method, host, path string
		want               bool
	}{
		{"POST", "a.llm.test", "/v1/chat", true}, {"post", "a.llm.test", "/V1/chat", true},
		{"GET", "a.llm.test", "/v1/chat", false}, {"POST", "llm.test", "/v1/chat", false},
		{"POST", "a.llm.test", "/v2/chat", false}, {"GET", "b.test", "/other/49", true},
		{"GET", "b.test", "/other/50", false},
	} {
		f := &policy.Facts{Method: c.method, Host: c.host, Path: c.path, Tier: "free"}
		check.Equal(t, fmt.Sprintf("%+v", c), policy.CountsTokens(s, f), c.want)
	}
}

// A rule with settings that do not suit a limit of tokens is unusable.
func TestUnsuitableLimitsOfTokensAreRefused(t *testing.T) {
	for want, change := range map[string]func(r *policy.Rule){
		`settle: "bytes": must be left out with unit tokens`: func(r *policy.Rule) { r.Settle = "bytes" },
		`unit: "words": must be requests, tokens,`: func(r *policy.Rule) {
			r.Limits[1].Unit = "words"
		},
		`unit: "tokens": must be requests with gcra`: func(r *policy.Rule) {
			r.Limits[1].Limit.Algorithm = ratelimit.GCRA
		},
	} {
		r := tokenRule(100)
		change(&r)
		unusable := policy.Compile([]policy.Rule{r}, nil, nil, 0).Unusable()
		if len(unusable) != 1 || !strings.HasPrefix(unusable[0].Err.Error(), want) {
			t.Errorf("got %v, want %s", unusable, want)
		}
	}
}
