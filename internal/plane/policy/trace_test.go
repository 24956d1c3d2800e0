package policy_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// Explain returns the same verdict as Evaluate. The rules that it marks as applying are exactly the rules in
// the verdict. If a rule does not apply because another rule of its family comes first, that other rule
// applies.
func TestExplainEqualsEvaluate(t *testing.T) {
	applied, refusals, exempts, families := 0, 0, 0, 0
	for seed := 1; seed <= 300; seed++ {
		pick := policytest.Numbers(seed)
		w := policytest.New(pick, 12, false)
		snapshot := policy.Compile(w.Rules, w.Overrides, w.Bans, seed%2*100)
		for range 20 {
			var f policy.Facts
			id, now := w.Request(pick, &f)
			var v policy.Verdict
			policy.EvaluateIdentity(snapshot, &f, id, now, &v)
			explained, trace := policy.Explain(snapshot, &f, id, now)
			if got, want := policytest.FormatVerdict(explained), policytest.FormatVerdict(&v); got != want {
				t.Fatalf("seed %d: Explain: got\n%s\nwant\n%s", seed, got, want)
			}

			want := map[string]bool{}
			for _, terms := range [][]*policy.Terms{v.Terms, v.ShadowTerms, trace.Terms} {
				for _, m := range terms {
					want[m.Rule] = true
				}
			}
			switch {
			case v.Exempt, v.Reason == policy.Blocked:
				want[v.Rule] = true
				exempts++
			case v.Reason == policy.NoQuota:
				continue // the verdict does not have the limits that come before
			case v.Refused():
				refusals++
				want = map[string]bool{}
			}
			reasons := map[string]string{}
			for _, r := range trace.Rules {
				if r.Applies != want[r.Name] || r.Why == "" {
					t.Fatalf("seed %d: %s: got applies %t (%s), want %t: %s", seed, r.Name, r.Applies,
						r.Why, want[r.Name], policytest.FormatVerdict(&v))
				}
				if r.Applies {
					applied++
				}
				reasons[r.Name] = r.Why
				if how, charges := strings.CutSuffix(r.Why, " do not charge "+f.Method); charges &&
					how != "its limits of tokens" {
					t.Fatalf("seed %d: %s: got %q, want a limit of tokens", seed, r.Name, r.Why)
				}
			}
			for _, reason := range reasons {
				if strings.HasPrefix(reason, "family ") {
					families++
				}
				before, isFirst := strings.CutSuffix(reason, " comes first")
				name := before[strings.LastIndexByte(before, ' ')+1:]
				charges := !strings.Contains(reasons[name], " of tokens do not charge ")
				if isFirst && !want[name] && charges {
					t.Fatalf("seed %d: got %q, want a rule that applies: %s", seed, reason,
						policytest.FormatVerdict(&v))
				}
			}
		}
	}
	if min(applied/1000, refusals/100, exempts/40, families/20) == 0 {
		t.Errorf("got %d rules that apply, %d refusals, %d exempt or blocked requests and %d rules that "+
			"another of their family precedes, want at least 1000, 100, 40 and 20", applied, refusals,
			exempts, families)
	}
}
