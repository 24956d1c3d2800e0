package admin

import (
	"slices"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// listedRules are the rules of a world as Rules returns them.
func listedRules(w *policytest.World) []Rule {
	order := []policy.Action{policy.Exempt, policy.Block, policy.Charge}
	var listed []Rule
	for i := range w.Rules {
		r := &w.Rules[i]
		row := Rule{Name: r.Name, Priority: r.Priority, Mode: r.Mode.String(), Action: r.Action.String()}
		if r.Family != "" {
			row.Family = &r.Family
		}
		listed = append(listed, row)
	}
	slices.SortStableFunc(listed, func(a, b Rule) int {
		action := func(r Rule) int {
			return slices.IndexFunc(order, func(a policy.Action) bool { return a.String() == r.Action })
		}
		switch {
		case action(a) != action(b):
			return action(a) - action(b)
		case a.Priority != b.Priority:
			return int(b.Priority - a.Priority)
		case a.Name < b.Name:
			return -1
		}
		return 1
	})
	return listed
}

// TestExplainSaysWhatProxiesDo: the rules that an explanation says apply are those that the
// proxies' matcher has found, in random worlds.
func TestExplainSaysWhatProxiesDo(t *testing.T) {
	applied, refusals, exempts := 0, 0, 0
	for seed := 1; seed <= 60; seed++ {
		pick := policytest.Numbers(seed)
		w := policytest.New(pick, 12, false)
		snapshot := policy.Compile(w.Rules, w.Overrides, w.Bans, policyOptions)
		listed := listedRules(w)
		for range 20 {
			var f policy.Facts
			id, now := w.Request(pick, &f)
			var o policy.Outcome
			policy.Decide(snapshot, &f, id, now, &o)
			q := newInquiry(&f, id, now, &o)

			want := map[string]bool{}
			for _, m := range o.Marks {
				want[m.Rule] = true
			}
			for _, m := range o.Would {
				want[m.Rule] = true
			}
			switch {
			case o.Exempt, o.Reason == policy.Blocked:
				want[o.Rule] = true
				exempts++
			case o.Refused() && o.Reason != policy.NoQuota:
				refusals++
			case o.Reason != policy.NotRefused:
				continue // the matcher stops at the limit without a quota
			default:
				for _, l := range q.unlimited(w.Rules, w.Overrides, &o) {
					want[l.Rule] = true
				}
			}
			for _, r := range explainRules(q, listed, w.Rules, &o) {
				if r.Applies != want[r.Name] {
					t.Fatalf("seed %d: %s: applies %t (%s), the matcher says %t: %s", seed, r.Name, r.Applies, r.Why, want[r.Name], policytest.Text(&o))
				}
				if r.Why == "" {
					t.Fatalf("seed %d: %s: no reason", seed, r.Name)
				}
				if r.Applies {
					applied++
				}
			}
		}
	}
	if applied < 500 || refusals < 50 || exempts < 20 {
		t.Errorf("%d rules applied, %d requests were refused and %d exempt or blocked: too few to say anything", applied, refusals, exempts)
	}
}
