package policy_test

import (
	"flag"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The long form: go test -run TestManyRules ./internal/plane/policy -rules 10000 -requests 1000000
var (
	ruleCount    = flag.Int("rules", 1000, "rules in TestManyRulesEqualNaiveLoop")
	requestCount = flag.Int("requests", 3000, "requests in TestManyRulesEqualNaiveLoop")
)

// Evaluate, with and without a memo, decides like a loop over all rules, and without a look-up of the sender
// like a loop over the rules that apply to all senders alike. The rules are few and similar, so that most
// requests match several of them.
func TestEvaluateEqualsNaiveLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		w := policytest.New(pick, rapid.IntRange(1, 20).Draw(t, "rules"), rapid.Bool().Draw(t, "selective"))
		oracle, unread := newNaive(w), newNaive(withoutSender(w))
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
				same := func(how string, v *policy.Verdict, want string) {
					if got := policytest.FormatVerdict(v); got != want {
						t.Fatalf("%s, %+v of %+v at %v:\n got %s\nwant %s", how, f, id, now, got, want)
					}
				}
				want := oracle.decide(&f, id, now)
				policy.EvaluateIdentity(plain, &f, id, now, &v)
				same("without a memo", &v, want)
				policy.EvaluateIdentity(memo, &f, id, now, &remembered)
				same("with a memo", &remembered, want)
				if v.Simple != remembered.Simple || v.Rule != remembered.Rule ||
					v.Endpoint != remembered.Endpoint {
					t.Fatalf("%+v of %+v at %v: got %+v with a memo, want %+v", f, id, now, remembered, v)
				}
				if got := policy.CountsTokens(plain, &f); got != oracle.countsTokens(&f) {
					t.Fatalf("%+v: got %t for rules that count tokens, want %t", f, got, !got)
				}
				if id != nil && id.Digest == "" {
					unreadID := &policy.Identity{User: id.User}
					policy.EvaluateUnknown(memo, &f, unreadID, now, &v)
					same("without a look-up", &v, unread.decide(&f, unreadID, now))
				}
			}
		}
	})
}

// withoutSender returns the rules and bans of a world that apply to all senders alike.
func withoutSender(w *policytest.World) *policytest.World {
	world := &policytest.World{Bans: w.Bans}
	for _, r := range w.Rules {
		countsSenders := len(r.CountBy) == 0 || slices.ContainsFunc(r.CountBy, func(part string) bool {
			return slices.ContainsFunc(strings.Split(part, "|"), func(name string) bool {
				return slices.Contains([]string{"user", "key", "tier"}, name)
			})
		})
		mayCharge := r.Action == policy.ActionLimit && (r.Family != "" || countsSenders)
		if len(r.Tiers) == 0 && !mayCharge {
			world.Rules = append(world.Rules, r)
		}
	}
	return world
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
					policy.EvaluateIdentity(s, &f, id, now, &v)
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

// A rule of a family that matches only by the IPv4 address behind NAT64 takes the place of no other rule.
func TestNAT64TakesNoGenerousRuleOfFamily(t *testing.T) {
	staff := policy.Rule{Name: "staff", Family: "plan", Priority: 2, Limits: perHour(1),
		Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	public := policy.Rule{Name: "public", Family: "plan", Limits: perHour(1)}
	v := mustDecide(t, []policy.Rule{staff, public},
		&policy.Facts{Path: "/", Address: netip.MustParseAddr("64:ff9b::c000:207")}, nil)
	check.Equal(t, "limits", prefixes(v), "rule/staff/hour rule/public/hour")
}

// The month of a user whose time zone does not exist is in the zone of the limit.
func TestUnknownTimeZoneLeavesThatOfTheLimit(t *testing.T) {
	month := ratelimit.Limit{Algorithm: ratelimit.FixedWindow, Events: 1, Calendar: ratelimit.Month,
		TimeZone: "Asia/Tokyo"}
	v := mustDecide(t, []policy.Rule{{Name: "plan", Limits: []policy.RuleLimit{{Name: "m", Limit: month}}}},
		&policy.Facts{Path: "/"}, &policy.Identity{Known: true, User: "u", PeriodStart: now,
			TimeZone: "Nowhere/Atall"})
	check.Equal(t, "the time zone", v.Hits[0].Limit.TimeZone, "Asia/Tokyo")
}
