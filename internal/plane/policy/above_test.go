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

// countRule is a rule with a limit of 10 requests an hour, for tiers that a text with spaces names.
func countRule(name, countBy, tiers string) policy.Rule {
	return policy.Rule{Name: name, CountBy: strings.Fields(countBy), Tiers: strings.Fields(tiers),
		Limits: []policy.RuleLimit{{Name: "l", Limit: ratelimit.Limit{Events: 10, Window: time.Hour}}}}
}

// hitsOf describes the hits of a verdict, as RULE:KEY=AMOUNT@LEVEL.
func hitsOf(v *policy.Verdict) string {
	var texts []string
	for i, h := range v.Hits {
		text := fmt.Sprintf("%s:%s=%d", v.Terms[i].Rule, h.Key, v.Terms[i].Quota)
		if level := v.Terms[i].Level; level != "" {
			text += "@" + level
		}
		texts = append(texts, text)
	}
	if v.Reason != "" {
		texts = append(texts, strings.TrimSpace(fmt.Sprint(v.Reason, " ", v.Rule, " ", v.Level)))
	}
	return strings.Join(texts, ", ")
}

func actionRule(name, tiers string, a policy.Action) policy.Rule {
	return policy.Rule{Name: name, Tiers: strings.Fields(tiers), Action: a}
}

func inFamily(r policy.Rule, priority int64) policy.Rule {
	r.Family, r.Priority = "plan", priority
	return r
}

func inShadow(r policy.Rule) policy.Rule {
	r.Mode = option.Shadow
	return r
}

// The limits by user of each user above apply as if that user had sent the request. Other limits apply once.
func TestLimitsOfUsersAboveApply(t *testing.T) {
	for _, c := range []struct {
		what  string
		rules []policy.Rule
		bans  []policy.Ban
		want  string
	}{
		{what: "each level has its plan", rules: []policy.Rule{countRule("p", "user", "person"),
			countRule("t", "user", "team"), countRule("o", "user", "org")},
			want: "p:ann=10, t:blue=10@blue, o:first=7@acme"},
		{what: "one rule counts each level", rules: []policy.Rule{countRule("r", "user", "")},
			want: "r:ann=10, r:blue=10@blue, r:first=10@acme"},
		{what: "other limits apply once", rules: []policy.Rule{countRule("a", "ip", ""),
			countRule("b", "all", ""),
			countRule("c", "key", ""), countRule("d", "tier", ""), countRule("e", "user host", ""),
			countRule("f", "key|user", "")},
			want: "a:192.0.2.1=10, b:all=10, c:7=10, d:person=10, e:ann h=10, f:1|7=10, e:blue h=10@blue, " +
				"f:2|blue=10@blue, e:first h=10@acme, f:2|first=10@acme"},
		{what: "families are decided for each level", rules: []policy.Rule{
			inFamily(countRule("p", "user", "person"), 2), inFamily(countRule("any", "user", ""), 1)},
			want: "p:ann=10, any:blue=10@blue, any:first=10@acme"},
		{what: "shadows come last", rules: []policy.Rule{inShadow(countRule("s", "user", "")),
			countRule("r", "user", "")},
			want: "r:ann=10, r:blue=10@blue, r:first=10@acme, s:ann=10, s:blue=10@blue, s:first=10@acme"},
		{what: "an exemption of a person", rules: []policy.Rule{
			actionRule("free", "person", policy.ActionExempt), countRule("r", "user", "")},
			want: "r:blue=10@blue, r:first=10@acme"},
		{what: "an exemption of a team", rules: []policy.Rule{actionRule("free", "team", policy.ActionExempt),
			countRule("r", "user", "")}, want: "r:ann=10, r:first=10@acme"},
		{what: "an exemption of all", rules: []policy.Rule{actionRule("free", "", policy.ActionExempt),
			countRule("r", "user", "")}},
		{what: "a block reaches down", rules: []policy.Rule{actionRule("shut", "org", policy.ActionBlock),
			countRule("r", "user", "")}, want: "blocked shut acme"},
		{what: "a ban reaches down", rules: []policy.Rule{countRule("r", "user", "")},
			bans: []policy.Ban{{User: "acme"}}, want: "banned"},
		{what: "no quota above", rules: []policy.Rule{func() policy.Rule {
			r := countRule("z", "user", "team")
			r.Limits[0].Limit.Events = 0
			return r
		}()}, want: "no_quota z blue"},
	} {
		s := policy.Compile(c.rules, nil, c.bans, 100)
		id := &policy.Identity{Digest: policy.Digest("k"), Known: true, KeyID: 7, User: "ann", Tier: "person",
			Ancestors: []*policy.Ancestor{{User: "blue", Tier: "team"},
				{User: "acme", UserCountedAs: "first", Tier: "org",
					Overrides: []policy.Override{{Rule: "o", Limit: "l", User: "acme", Events: 7}}}}}
		f := &policy.Facts{Tier: "anonymous", Method: "POST", Host: "h", Path: "/",
			Address: netip.MustParseAddr("192.0.2.1")}
		var v policy.Verdict
		for range 3 { // later verdicts may come from memory
			policy.EvaluateFound(s, f, id, time.Now(), &v)
			check.Equal(t, c.what, hitsOf(&v), c.want)
		}
		check.Equal(t, c.what+": exempt", v.Exempt, c.what == "an exemption of all")
	}
}
