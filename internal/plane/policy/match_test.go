package policy_test

import (
	"flag"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The long form: go test -run TestMany ./internal/plane/policy -rules 10000 -requests 1000000
var (
	ruleCount    = flag.Int("rules", 1000, "rules in TestManyRulesEqualNaiveLoop")
	requestCount = flag.Int("requests", 3000, "requests in TestManyRulesEqualNaiveLoop")
)

// Evaluate, with and without a memo, decides like a loop over all rules. The rules are few and similar, so
// that most requests match several of them.
func TestEvaluateEqualsNaiveLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		w := policytest.New(pick, rapid.IntRange(1, 20).Draw(t, "rules"), rapid.Bool().Draw(t, "selective"))
		oracle := newNaive(w)
		plain := policy.Compile(w.Rules, w.Overrides, w.Bans, 0)
		if wrong := plain.Unusable(); len(wrong) > 0 {
			t.Fatalf("Unusable: got %v, want none", wrong)
		}
		memo := policy.Compile(w.Rules, w.Overrides, w.Bans, 4)
		var f policy.Facts
		var v, remembered policy.Verdict
		for range 20 {
			id, now := w.Request(pick, &f)
			path, host, method := f.Path, f.Host, f.Method
			// Later requests find entries of earlier requests in the memo, even of other senders.
			for n := range 6 {
				if n > 2 {
					id, now = w.Request(pick, &f)
					f.Path, f.Host, f.Method = path, host, method
				}
				want := oracle.decide(&f, id, now)
				policy.EvaluateFound(plain, &f, id, now, &v)
				policy.EvaluateFound(memo, &f, id, now, &remembered)
				got, repeated := policytest.FormatVerdict(&v), policytest.FormatVerdict(&remembered)
				if got != want || repeated != want {
					t.Fatalf("%+v of %+v at %v:\n got %s\n and %s with a memo\nwant %s", f, id, now, got,
						repeated, want)
				}
				if v.Simple != remembered.Simple || v.Rule != remembered.Rule ||
					v.Endpoint != remembered.Endpoint {
					t.Fatalf("%+v of %+v at %v: got %+v with a memo, want %+v", f, id, now, remembered, v)
				}
			}
		}
	})
}

// EvaluateUnknown, which does not look up the sender, decides like a loop over the rules that apply to all
// senders alike.
func TestEvaluateUnknownEqualsNaiveLoop(t *testing.T) {
	limited, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		w := policytest.New(pick, rapid.IntRange(1, 20).Draw(t, "rules"), rapid.Bool().Draw(t, "selective"))
		w.Rules = append(w.Rules, policy.Rule{
			Name: "everybody", Action: policy.ActionLimit, CountBy: []string{"ip"},
			Limits: []policy.RuleLimit{{Name: "hour", Limit: ratelimit.Limit{Events: 10, Window: time.Hour}}},
		})
		world := &policytest.World{Bans: w.Bans} // with the rules that need no sender
		senders := []string{"user", "key", "tier"}
		for _, r := range w.Rules {
			countsSenders := len(r.CountBy) == 0
			for _, name := range r.CountBy {
				for _, alternative := range strings.Split(name, "|") {
					countsSenders = countsSenders || slices.Contains(senders, alternative)
				}
			}
			mayCharge := r.Action == policy.ActionLimit && (r.Family != "" || countsSenders)
			if len(r.Tiers) == 0 && !mayCharge {
				world.Rules = append(world.Rules, r)
			}
		}
		oracle := newNaive(world)
		plain := policy.Compile(w.Rules, w.Overrides, w.Bans, 0)
		memo := policy.Compile(w.Rules, w.Overrides, w.Bans, 4)
		var f policy.Facts
		var v policy.Verdict
		for range 20 {
			sender, now := w.Request(pick, &f)
			if sender == nil || sender.Digest != "" {
				continue
			}
			id := &policy.Identity{User: sender.User}
			want := oracle.decide(&f, id, now)
			for range 2 {
				for name, s := range map[string]*policy.Snapshot{"without memo": plain, "with memo": memo} {
					policy.EvaluateUnknown(s, &f, id, now, &v)
					if got := policytest.FormatVerdict(&v); got != want {
						t.Fatalf("%s: %+v of %+v at %v:\n got %s\nwant %s", name, f, id, now, got, want)
					}
				}
			}
			limited += len(v.Hits)
			if v.Refused() {
				refused++
			}
		}
	})
	if limited == 0 || refused == 0 {
		t.Errorf("got %d hits and %d refusals, want both above 0", limited, refused)
	}
}

// Evaluate decides like a loop over all rules, also with thousands of rules.
func TestManyRulesEqualNaiveLoop(t *testing.T) {
	w := policytest.New(policytest.Numbers(1), *ruleCount, true)
	oracle := newNaive(w)
	plain := policy.Compile(w.Rules, w.Overrides, w.Bans, 0)
	memo := policy.Compile(w.Rules, w.Overrides, w.Bans, 1000)
	if plain.Rules() == 0 || len(plain.Unusable()) > 0 {
		t.Fatalf("got %d usable rules and the wrong rules %v, want some and none", plain.Rules(),
			plain.Unusable())
	}
	var group sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for worker := range workers {
		group.Go(func() {
			pick := policytest.Numbers(2 + worker)
			var f policy.Facts
			var v policy.Verdict
			charged := 0
			for range *requestCount / workers {
				id, now := w.Request(pick, &f)
				want := oracle.decide(&f, id, now)
				for _, s := range []*policy.Snapshot{plain, memo} {
					policy.EvaluateFound(s, &f, id, now, &v)
					if got := policytest.FormatVerdict(&v); got != want {
						t.Errorf("%+v of %+v at %v:\n got %s\nwant %s", f, id, now, got, want)
						return
					}
				}
				if len(v.Hits) > 1 {
					charged++
				}
			}
			if charged == 0 {
				t.Error("got no request with two hits, want some")
			}
		})
	}
	group.Wait()
}
