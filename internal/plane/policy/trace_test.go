package policy_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// In random worlds, Explain decides as Evaluate does. The rules that apply are those of the verdict, and a
// rule that gives way names one that applies.
func TestExplainSaysWhatDecideDoes(t *testing.T) {
	applied, refusals, exempts, families := 0, 0, 0, 0
	for seed := 1; seed <= 120; seed++ {
		pick := policytest.Numbers(seed)
		w := policytest.New(pick, 12, false)
		snapshot := policy.Compile(w.Rules, w.Overrides, w.Bans, seed%2*100)
		for range 20 {
			var f policy.Facts
			id, now := w.Request(pick, &f)
			var o policy.Verdict
			policy.Evaluate(snapshot, &f, id, now, &o)
			explained, trace := policy.Explain(snapshot, &f, id, now)
			if got, want := policytest.Text(explained), policytest.Text(&o); got != want {
				t.Fatalf("seed %d: Explain decides\n%s\nDecide\n%s", seed, got, want)
			}

			want := map[string]bool{}
			for _, marks := range [][]*policy.Mark{o.Marks, o.Would, trace.Marks} {
				for _, m := range marks {
					want[m.Rule] = true
				}
			}
			switch {
			case o.Exempt, o.Reason == policy.Blocked:
				want[o.Rule] = true
				exempts++
			case o.Reason == policy.NoQuota:
				continue // the outcome does not have the limits that come before
			case o.Refused():
				refusals++
				want = map[string]bool{}
			}
			var why []string
			for _, r := range trace.Rules {
				if r.Applies != want[r.Name] || r.Why == "" {
					t.Fatalf("seed %d: %s: got applies %t (%s), want %t: %s", seed, r.Name, r.Applies,
						r.Why, want[r.Name], policytest.Text(&o))
				}
				if r.Applies {
					applied++
				}
				why = append(why, r.Why)
			}
			for _, text := range why {
				if strings.HasPrefix(text, "family ") {
					families++
				}
				before, isFirst := strings.CutSuffix(text, " comes first")
				if at := strings.LastIndexByte(before, ' '); isFirst && !want[before[at+1:]] {
					t.Fatalf("seed %d: %q, and that rule does not apply: %s", seed, text, policytest.Text(&o))
				}
			}
		}
	}
	if applied < 1000 || refusals < 100 || exempts < 40 || families < 20 {
		t.Errorf("%d rules applied, %d requests were refused, %d exempt or blocked, and %d rules gave way "+
			"in their family: too few to say anything", applied, refusals, exempts, families)
	}
}
