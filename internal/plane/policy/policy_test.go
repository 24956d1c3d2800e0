package policy_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

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
	policy.EvaluateFound(s, f, id, now, &v)
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

// A monthly limit that counts by user starts on the day of the user's billing period, in the user's time
// zone. If the time zone does not exist, the limit's own zone applies.
func TestBillingPeriodStartsOnUsersDay(t *testing.T) {
	month := []policy.RuleLimit{{Name: "month",
		Limit: ratelimit.Limit{Algorithm: ratelimit.FixedWindow, Events: 100, Calendar: ratelimit.Month,
			TimeZone: "Asia/Tokyo"}}}
	rules := []policy.Rule{{Name: "plan", Limits: month},
		{Name: "shared", Priority: -1, CountBy: []string{"tier"}, Limits: month}}
	overrides := []policy.Override{{Rule: "plan", Limit: "month", Tier: "pro", Events: 500}}
	s := policy.Compile(rules, overrides, nil, 10)
	day := time.Date(2024, 1, 31, 0, 0, 0, 0, time.UTC)
	a := &policy.Identity{Known: true, User: "a", Tier: "pro", PeriodStart: day, TimeZone: "Europe/Berlin"}
	b := &policy.Identity{Known: true, User: "b", Tier: "pro", PeriodStart: day, TimeZone: "Europe/Berlin"}
	c := &policy.Identity{Known: true, User: "c", Tier: "pro", PeriodStart: day, TimeZone: "Nowhere/Atall",
		Overrides: []policy.Override{{Rule: "plan", Limit: "month", User: "c", Events: 700}}}
	var first *ratelimit.Limit
	for _, test := range []struct {
		id     *policy.Identity
		events int64
		zone   string
	}{{a, 500, "Europe/Berlin"}, {b, 500, "Europe/Berlin"}, {c, 700, "Asia/Tokyo"},
		{a, 500, "Europe/Berlin"}} {
		var v policy.Verdict
		policy.EvaluateFound(s, &policy.Facts{Path: "/"}, test.id, now, &v)
		l := v.Hits[0].Limit
		want := month[0].Limit
		want.Prefix, want.Events, want.TimeZone, want.Anchor = "rule/plan/month", test.events, test.zone, 30
		if *l != want || l.Validate() != nil {
			t.Errorf("%s: got the limit %+v, want %+v", test.id.User, *l, want)
		}
		if shared := v.Hits[1].Limit; shared.Anchor != 0 || shared.TimeZone != "Asia/Tokyo" {
			t.Errorf("got the shared limit %+v, want calendar months in Asia/Tokyo", *shared)
		}
		if test.id != c && first != nil && first != l {
			t.Error("users with the same period: got two limits, want one")
		}
		if test.id != c {
			first = l
		}
	}
}

// Values are escaped in the keys of counters, so that different senders have different keys.
// TestEvaluateEqualsNaiveLoop does not test that, because its oracle escapes nothing.
func TestSendersNeverShareCounter(t *testing.T) {
	by := func(names ...string) policy.Rule {
		return policy.Rule{Name: "r", CountBy: names,
			Limits: perHour(1)}
	}
	skipping := by("header:x-b")
	skipping.WithoutHeader = "skip"
	key := func(r policy.Rule, f *policy.Facts, user string) string {
		t.Helper()
		var id *policy.Identity
		if user != "" {
			id = &policy.Identity{Known: true, User: user}
		}
		v := mustDecide(t, []policy.Rule{r}, f, id)
		if len(v.Hits) == 0 {
			return ""
		}
		return v.Hits[0].Key
	}
	address := netip.MustParseAddr("2001:db8:1:2:3::4")
	for _, test := range []struct {
		rule policy.Rule
		f    policy.Facts
		user string
		want string
	}{
		{by(), policy.Facts{}, "", "ip:unknown"},
		{by(), policy.Facts{Address: address}, "", "ip:2001:db8:1:2::/64"},
		{by(), policy.Facts{Address: address}, "ip:2001:db8:1:2::/64", "ip%3A2001:db8:1:2::/64"},
		{by(), policy.Facts{}, "ip%3Ax", "ip%253Ax"},
		{by("user", "host"), policy.Facts{Host: "c"}, "a b", "a%20b c"},
		{by("user", "header:x-b"), policy.Facts{Header: http.Header{"X-B": {"b c"}}}, "a", "a b%20c"},
		{by("user", "header:x-b"), policy.Facts{Header: http.Header{}}, "a", "a %empty"},
		{by("header:x-b"), policy.Facts{Header: http.Header{"X-B": {""}}}, "a", "%empty"},
		{by("header:x-b"), policy.Facts{Header: http.Header{"X-B": {"%empty"}}}, "a", "%25empty"},
		{skipping, policy.Facts{Header: http.Header{"X-B": {""}}}, "a", ""},
	} {
		if got := key(test.rule, &test.f, test.user); got != test.want {
			t.Errorf("count by %v of %q: got %q, want %q", test.rule.CountBy, test.user, got, test.want)
		}
	}
}

// If a rule counts by a header that usually has a secret, the key of its counters is stored as a digest.
func TestSecretHeaderIsStoredAsDigest(t *testing.T) {
	for name, want := range map[string]bool{"X-Api-Key": true, "X-Tenant": false} {
		rules := []policy.Rule{{Name: "r", CountBy: []string{"header:" + name}, Limits: perHour(1)}}
		v := mustDecide(t, rules, &policy.Facts{Path: "/", Header: http.Header{name: {"secret"}}}, nil)
		if len(v.Hits) != 1 || v.Hits[0].Secret != want {
			t.Errorf("%s: got the hits %+v, want one with Secret %v", name, v.Hits, want)
		}
	}
}

// An invalid rule or override is reported, and the other rules apply.
func TestInvalidRuleIsDisabledAlone(t *testing.T) {
	good := func(name string) policy.Rule {
		return policy.Rule{Name: name, CountBy: []string{"all"}, Limits: perHour(5)}
	}
	// Tests of package schema compare which hosts, paths and parts of a key are accepted.
	wrong := map[string]func(*policy.Rule){
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
		`networks: `:            func(r *policy.Rule) { r.Networks = []netip.Prefix{{}} },
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
		policy.EvaluateFound(s, &policy.Facts{Path: "/"}, nil, now, &v)
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
