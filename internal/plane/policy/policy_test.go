package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var now = policytest.Now

func perHour(events int64) []policy.RuleLimit {
	return []policy.RuleLimit{{Name: "hour", Limit: ratelimit.Limit{Events: events, Window: time.Hour}}}
}

// mustDecide compiles rules and decides one request. All rules must be usable.
func mustDecide(t *testing.T, rules []policy.Rule, f *policy.Facts, id *policy.Identity) *policy.Verdict {
	t.Helper()
	s := policy.Compile(rules, nil, nil, 0)
	if wrong := s.Unusable(); len(wrong) > 0 {
		t.Fatalf("Unusable: got %v, want none", wrong)
	}
	var v policy.Verdict
	policy.EvaluateIdentity(s, f, id, now, &v)
	return &v
}

// prefixes returns the prefixes of the hits, with "!" after the prefix of a shadow rule.
func prefixes(v *policy.Verdict) string {
	var prefixes []string
	for i, h := range v.Hits {
		prefix := h.Limit.Prefix
		if v.Terms[i].Shadow {
			prefix += "!"
		}
		prefixes = append(prefixes, prefix)
	}
	return strings.Join(prefixes, " ")
}

// An invalid rule or override is reported, and the other rules apply.
func TestInvalidRuleIsDisabledAlone(t *testing.T) {
	good := func(name string) policy.Rule {
		return policy.Rule{Name: name, CountBy: []string{"all"}, Limits: perHour(5)}
	}
	// Tests of package schema compare which hosts, paths and parts of a key are accepted.
	tokens := func(r *policy.Rule) *policy.RuleLimit {
		r.Limits[0].Unit = option.Tokens
		return &r.Limits[0]
	}
	wrong := map[string]func(*policy.Rule){
		`unit: "words": must be requests, tokens,`: func(r *policy.Rule) { tokens(r).Unit = "words" },
		`unit: "tokens": must be requests with gcra`: func(r *policy.Rule) {
			tokens(r).Limit.Algorithm = ratelimit.GCRA
		},
		`hosts: "a b": must be`: func(r *policy.Rule) { r.Hosts = []string{"a b"} },
		`hosts: missing`:        func(r *policy.Rule) { r.Hosts = []string{""} },
		`paths: "api": must be`: func(r *policy.Rule) { r.Paths = []string{"api"} },
		`count_by: "usr"`:       func(r *policy.Rule) { r.CountBy = []string{"usr"} },
		`count_by: "all"`:       func(r *policy.Rule) { r.CountBy = []string{"user", "all"} },
		`limits: missing`:       func(r *policy.Rule) { r.Limits = nil },
		`events: "-5"`:          func(r *policy.Rule) { r.Limits[0].Limit.Events = -5 },
		`prefix: `:              func(r *policy.Rule) { r.Name = strings.Repeat("x", 250) },
		`mode: "later"`:         func(r *policy.Rule) { r.Mode = "later" },
		`action: "later"`:       func(r *policy.Rule) { r.Action = "later" },
		`tier: "x": must be`: func(r *policy.Rule) {
			r.Err = &ratelimit.FieldError{Field: "tier", Value: "x", Want: "a tier"}
		},
	}
	for want, change := range wrong {
		bad := good("bad")
		change(&bad)
		s := policy.Compile([]policy.Rule{bad, good("good")}, nil, nil, 0)
		list := s.Unusable()
		if len(list) != 1 || list[0].Rule != bad.Name {
			t.Fatalf("Unusable: got %v, want the rule %s", list, bad.Name)
		}
		if err := list[0].Err.Error(); !strings.HasPrefix(err, want) || !strings.Contains(err, "must be") {
			t.Errorf("Unusable: got %s, want %s ... must be", err, want)
		}
		var v policy.Verdict
		policy.EvaluateIdentity(s, &policy.Facts{Path: "/"}, nil, now, &v)
		if got := prefixes(&v); got != "rule/good/hour" {
			t.Errorf("%s: got the hits %q, want rule/good/hour", want, got)
		}
	}
	overrides := []policy.Override{{Rule: "good", Limit: "hour", Tier: "t", Events: -1},
		{Rule: "gone", Limit: "hour", Tier: "t", Events: 1}}
	list := policy.Compile([]policy.Rule{good("good")}, overrides, nil, 0).Unusable()
	if len(list) != 1 || list[0].Override != "limit hour, tier t" {
		t.Errorf("Unusable: got %v, want the override of limit hour, tier t", list)
	}
}
