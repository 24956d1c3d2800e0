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

// decide compiles rules and decides one request. No rule may be wrong.
func decide(t *testing.T, rules []policy.Rule, f *policy.Facts, id *policy.Identity) *policy.Verdict {
	t.Helper()
	s := policy.Compile(rules, nil, nil, policy.Options{})
	if wrong := s.Wrong(); len(wrong) > 0 {
		t.Fatalf("wrong: %v", wrong)
	}
	var o policy.Verdict
	policy.Evaluate(s, f, id, now, &o)
	return &o
}

// prefixes are those of the hits, with ! for a shadow.
func prefixes(o *policy.Verdict) string {
	var list []string
	for i, h := range o.Hits {
		text := h.Limit.Prefix
		if o.Marks[i].Shadow {
			text += "!"
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

func TestAFreeUserIsChargedForThePlanAndForTheProtectedPath(t *testing.T) {
	rules := []policy.Rule{
		{Name: "api_v1_limit", Family: "protect", Priority: 600, Paths: []string{"/api/v1/*"}, CountBy: []string{"all"}, Status: 503, Message: "busy",
			Limits: []policy.RuleLimit{{Name: "second", Limit: ratelimit.Limit{Events: 100, Window: time.Second}}}},
		{Name: "free_tier_limit", Family: "plan", Priority: 700, Tiers: []string{"free"},
			Limits: []policy.RuleLimit{{Name: "hour", Limit: ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Events: 1000, Burst: 20, Window: time.Hour}}}},
		{Name: "everybody", Family: "plan", Priority: 1, Limits: perHour(5)},
	}
	alice := &policy.Identity{Known: true, User: "alice", Tier: "free"}
	o := decide(t, rules, &policy.Facts{Path: "/api/v1/x"}, alice)
	if got := prefixes(o); got != "rule/free_tier_limit/hour rule/api_v1_limit/second" {
		t.Errorf("hits are %s", got)
	}
	if o.Hits[0].Key != "alice" || o.Hits[1].Key != "all" || o.Marks[0].Quota != 20 || o.Marks[1].Status != 503 || o.Marks[1].Message != "busy" || o.Marks[0].Status != 429 {
		t.Errorf("hits are %+v, marks %+v %+v", o.Hits, o.Marks[0], o.Marks[1])
	}
	if o.User != "alice" || o.Tier != "free" || o.Rule != "free_tier_limit" {
		t.Errorf("outcome is %+v", o)
	}
	if got := prefixes(decide(t, rules, &policy.Facts{Path: "/x", Tier: "anonymous", Address: netip.MustParseAddr("192.0.2.1")}, nil)); got != "rule/everybody/hour" {
		t.Errorf("nobody's hits are %s", got)
	}
}

func TestAShadowRuleNeverTakesItsFamilysPlace(t *testing.T) {
	all := []string{"all"}
	rule := func(name string, priority int64, mode policy.Mode) policy.Rule {
		return policy.Rule{Name: name, Family: "plan", Priority: priority, Mode: mode, CountBy: all, Limits: perHour(1)}
	}
	rules := []policy.Rule{
		rule("try", 9, policy.Shadow), rule("also", 8, policy.Shadow), rule("off", 7, policy.Off), rule("real", 6, policy.Enforce), rule("later", 5, policy.Shadow), rule("last", 4, policy.Enforce),
		{Name: "shut", Action: policy.Block, Mode: policy.Shadow}, {Name: "free", Action: policy.Exempt, Mode: policy.Shadow},
		{Name: "zero", Mode: policy.Shadow, CountBy: all, Limits: perHour(0)},
	}
	o := decide(t, rules, &policy.Facts{Path: "/"}, nil)
	if got := prefixes(o); got != "rule/try/hour! rule/also/hour! rule/real/hour" || o.Rule != "real" || o.Refused() || o.Exempt {
		t.Errorf("hits are %s, outcome %+v", got, o)
	}
	if len(o.Would) != 3 || o.Would[0].Rule != "free" || o.Would[1].Rule != "shut" || o.Would[2].Rule != "zero" {
		t.Errorf("shadows would have been %+v", o.Would)
	}
}

func TestAnOverageLimitCountsBeyondItsQuota(t *testing.T) {
	rules := []policy.Rule{{Name: "plan", CountBy: []string{"all"}, Limits: []policy.RuleLimit{
		{Name: "month", Overage: true, Limit: ratelimit.Limit{Algorithm: ratelimit.FixedWindow, Events: 100, Calendar: ratelimit.Month}},
		{Name: "none", Overage: true, Limit: ratelimit.Limit{Events: 0, Window: time.Hour}},
		{Name: "free", Unlimited: true, Limit: ratelimit.Limit{Window: time.Hour}},
	}}}
	o := decide(t, rules, &policy.Facts{Path: "/"}, nil)
	if len(o.Hits) != 2 || o.Hits[0].Limit.Events < 256*ratelimit.MaxEvents || !o.Marks[0].Overage || o.Marks[0].Quota != 100 || o.Marks[1].Quota != 0 || o.Refused() {
		t.Errorf("outcome is %+v", o)
	}
}

func TestABillingPeriodBeginsOnTheUsersDay(t *testing.T) {
	month := []policy.RuleLimit{{Name: "month", Limit: ratelimit.Limit{Algorithm: ratelimit.FixedWindow, Events: 100, Calendar: ratelimit.Month, Zone: "Asia/Tokyo"}}}
	rules := []policy.Rule{{Name: "plan", Limits: month}, {Name: "shared", Priority: -1, CountBy: []string{"tier"}, Limits: month}}
	overrides := []policy.Override{{Rule: "plan", Limit: "month", Tier: "pro", Events: 500}}
	s := policy.Compile(rules, overrides, nil, policy.Options{Remember: 10})
	day := time.Date(2024, 1, 31, 0, 0, 0, 0, time.UTC)
	a := &policy.Identity{Known: true, User: "a", Tier: "pro", PeriodStart: day, TimeZone: "Europe/Berlin"}
	b := &policy.Identity{Known: true, User: "b", Tier: "pro", PeriodStart: day, TimeZone: "Europe/Berlin"}
	c := &policy.Identity{Known: true, User: "c", Tier: "pro", PeriodStart: day, TimeZone: "Nowhere/Atall", Overrides: []policy.Override{{Rule: "plan", Limit: "month", User: "c", Events: 700}}}
	var first *ratelimit.Limit
	for _, test := range []struct {
		id     *policy.Identity
		events int64
		zone   string
	}{{a, 500, "Europe/Berlin"}, {b, 500, "Europe/Berlin"}, {c, 700, "Asia/Tokyo"}, {a, 500, "Europe/Berlin"}} {
		var o policy.Verdict
		policy.Evaluate(s, &policy.Facts{Path: "/"}, test.id, now, &o)
		l := o.Hits[0].Limit
		if l.Anchor != 30 || l.Zone != test.zone || l.Events != test.events || l.Validate() != nil {
			t.Errorf("the limit of %s is %+v", test.id.User, *l)
		}
		if shared := o.Hits[1].Limit; shared.Anchor != 0 || shared.Zone != "Asia/Tokyo" {
			t.Errorf("a limit that users share begins on a day of one of them: %+v", *shared)
		}
		if test.id != c && first != nil && first != l {
			t.Error("users with the same period have two limits")
		}
		if test.id != c {
			first = l
		}
	}
}

func TestNoTwoSendersShareACounter(t *testing.T) {
	by := func(names ...string) policy.Rule { return policy.Rule{Name: "r", CountBy: names, Limits: perHour(1)} }
	skipping := by("header:x-b")
	skipping.SkipWithoutHeader = true
	key := func(r policy.Rule, f *policy.Facts, user string) string {
		t.Helper()
		var id *policy.Identity
		if user != "" {
			id = &policy.Identity{Known: true, User: user}
		}
		o := decide(t, []policy.Rule{r}, f, id)
		if len(o.Hits) == 0 {
			return ""
		}
		return o.Hits[0].Key
	}
	address := netip.MustParseAddr("2001:db8:1:2:3::4")
	for _, test := range []struct {
		rule policy.Rule
		f    policy.Facts
		user string
		want string
	}{
		{by(), policy.Facts{}, "auth0|5f7c", "auth0|5f7c"},
		{by(), policy.Facts{}, "", ""},
		{by(), policy.Facts{Address: address}, "", "ip:2001:db8:1:2::/64"},
		{by(), policy.Facts{Address: address}, "ip:2001:db8:1:2::/64", "ip%3A2001:db8:1:2::/64"},
		{by(), policy.Facts{}, "ip%3Ax", "ip%253Ax"},
		{by("ip"), policy.Facts{Address: address}, "", "2001:db8:1:2:3::4"},
		{by("ip"), policy.Facts{Address: netip.MustParseAddr("::ffff:192.0.2.1")}, "", "192.0.2.1"},
		{by("ip/64"), policy.Facts{Address: netip.MustParseAddr("192.0.2.1")}, "", "192.0.2.1"},
		{by("user", "host"), policy.Facts{Host: "c"}, "a b", "a%20b c"},
		{by("user", "header:x-b"), policy.Facts{Header: http.Header{"X-B": {"b c"}}}, "a", "a b%20c"},
		{by("user", "header:x-b"), policy.Facts{Header: http.Header{}}, "a", "a %empty"},
		{by("header:x-b"), policy.Facts{Header: http.Header{"X-B": {""}}}, "a", "%empty"},
		{by("header:x-b"), policy.Facts{Header: http.Header{"X-B": {"%empty"}}}, "a", "%25empty"},
		{skipping, policy.Facts{Header: http.Header{"X-B": {""}}}, "a", ""},
		{skipping, policy.Facts{Header: http.Header{"X-B": {"b"}}}, "a", "b"},
		{by("key"), policy.Facts{Address: address}, "a", ""},
		{by("route"), policy.Facts{}, "a", ""},
		{by("all"), policy.Facts{}, "", "all"},
	} {
		if got := key(test.rule, &test.f, test.user); got != test.want {
			t.Errorf("count by %v of %q: %q, want %q", test.rule.CountBy, test.user, got, test.want)
		}
	}
}

func TestAHeaderThatHoldsASecretIsStoredAsADigest(t *testing.T) {
	rules := []policy.Rule{{Name: "r", CountBy: []string{"header:x-key"}, Limits: perHour(1)}}
	f := &policy.Facts{Path: "/", Header: http.Header{"X-Key": {"secret"}}}
	for want, secret := range map[bool]func(string) bool{true: nil, false: func(name string) bool { return name != "X-Key" }} {
		var o policy.Verdict
		policy.Evaluate(policy.Compile(rules, nil, nil, policy.Options{SecretHeader: secret}), f, nil, now, &o)
		if len(o.Hits) != 1 || o.Hits[0].Secret != want {
			t.Errorf("hits are %+v, want one that is secret: %v", o.Hits, want)
		}
	}
}

func TestABanShutsOutANetworkAUserAndAKey(t *testing.T) {
	later := now.Add(time.Hour)
	s := policy.Compile([]policy.Rule{{Name: "free", Action: policy.Exempt}}, nil, []policy.Ban{
		{Network: netip.MustParsePrefix("10.0.0.0/8"), Until: later, Reason: "abuse"}, {Network: netip.MustParsePrefix("10.1.0.0/16"), Until: now},
		{User: "mallory"}, {User: "bob", Until: later}, {User: "bob", Until: now}, {Digest: policy.Digest("k"), User: "alice", KeyID: 7, Until: later},
	}, policy.Options{Remember: 10})
	for i, test := range []struct {
		address string
		id      *policy.Identity
		after   time.Duration
		banned  bool
	}{
		{"10.1.2.3", nil, 0, true}, {"::ffff:10.2.2.3", nil, 0, true}, {"11.0.0.1", nil, 0, false}, {"10.1.2.3", nil, time.Hour, false},
		{"", &policy.Identity{Known: true, User: "mallory", Tier: "free"}, 0, true},
		{"", &policy.Identity{Known: true, User: "alice", Tier: "free"}, 0, false},
		{"", &policy.Identity{Known: true, Digest: policy.Digest("k"), User: "alice", Tier: "free", KeyID: 7}, 0, true},
		{"", &policy.Identity{Known: true, Digest: policy.Digest("k"), User: "alice", Tier: "free", KeyID: 7}, time.Hour, false},
		{"", &policy.Identity{Known: true, User: "bob", Tier: "free"}, 0, true},
		{"", &policy.Identity{Known: true, User: "bob", Tier: "free"}, time.Hour, false},
	} {
		f := &policy.Facts{Path: "/"}
		if test.address != "" {
			f.Address = netip.MustParseAddr(test.address)
		}
		var o policy.Verdict
		for round := range 3 {
			policy.Evaluate(s, f, test.id, now.Add(test.after), &o)
			if (o.Reason == policy.Banned) != test.banned || test.banned && (o.Status != 403 || o.Ban == nil) || o.Exempt == test.banned {
				t.Errorf("request %d, round %d: %+v, want banned: %v", i, round, o, test.banned)
			}
		}
	}
}

func TestAWrongRuleIsDisabledAloneAndNamed(t *testing.T) {
	good := func(name string) policy.Rule {
		return policy.Rule{Name: name, CountBy: []string{"all"}, Limits: perHour(5)}
	}
	wrong := map[string]func(*policy.Rule){
		`name: missing`:         func(r *policy.Rule) { r.Name = "" },
		`name: "good": must be`: func(r *policy.Rule) { r.Name = "good"; r.Priority = -1 },
		`hosts: "a b": must be`: func(r *policy.Rule) { r.Hosts = []string{"a b"} },
		`hosts: "*": must be`:   func(r *policy.Rule) { r.Hosts = []string{"*"} },
		`hosts: "a.*.b": must`:  func(r *policy.Rule) { r.Hosts = []string{"a.*.b"} },
		`hosts: "a.test:80"`:    func(r *policy.Rule) { r.Hosts = []string{"a.test:80"} },
		`hosts: "bücher.test"`:  func(r *policy.Rule) { r.Hosts = []string{"bücher.test"} },
		`hosts: "": must`:       nil,
		`paths: "api": must be`: func(r *policy.Rule) { r.Paths = []string{"api"} },
		`paths: "/a*": must be`: func(r *policy.Rule) { r.Paths = []string{"/a*"} },
		`paths: "/a//b": must`:  func(r *policy.Rule) { r.Paths = []string{"/a//b"} },
		`paths: "/a/../b"`:      func(r *policy.Rule) { r.Paths = []string{"/a/../b"} },
		`paths: "/a%20b"`:       func(r *policy.Rule) { r.Paths = []string{"/a%20b"} },
		`count_by: "usr"`:       func(r *policy.Rule) { r.CountBy = []string{"usr"} },
		`count_by: "header:"`:   func(r *policy.Rule) { r.CountBy = []string{"header:"} },
		`count_by: "all"`:       func(r *policy.Rule) { r.CountBy = []string{"user", "all"} },
		`status: "200"`:         func(r *policy.Rule) { r.Status = 200 },
		`cost: "-1"`:            func(r *policy.Rule) { r.Cost = -1 },
		`valid: `:               func(r *policy.Rule) { r.From, r.Until = now, now },
		`retry_after: "-1s"`:    func(r *policy.Rule) { r.RetryAfter = -time.Second },
		`limits: missing`:       func(r *policy.Rule) { r.Limits = nil },
		`limits: "hour"`:        func(r *policy.Rule) { r.Action = policy.Block },
		`limit: "a/b"`:          func(r *policy.Rule) { r.Limits[0].Name = "a/b" },
		`events: "-5"`:          func(r *policy.Rule) { r.Limits[0].Limit.Events = -5 },
		`prefix: `:              func(r *policy.Rule) { r.Name = strings.Repeat("x", 250) },
		`algorithm: "gcra"`:     func(r *policy.Rule) { r.Limits[0].Overage, r.Limits[0].Limit.Algorithm = true, ratelimit.GCRA },
		`mode: "Mode(9)"`:       func(r *policy.Rule) { r.Mode = 9 },
		`action: "Action(9)"`:   func(r *policy.Rule) { r.Action = 9 },
		`networks: `:            func(r *policy.Rule) { r.Networks = []netip.Prefix{{}} },
		`tier: "x": must be`:    func(r *policy.Rule) { r.Err = &ratelimit.FieldError{Field: "tier", Value: "x", Want: "a tier"} },
	}
	for want, change := range wrong {
		bad := good("bad")
		if change == nil {
			bad.Hosts, want = []string{""}, "hosts: missing"
		} else {
			change(&bad)
		}
		s := policy.Compile([]policy.Rule{bad, good("good")}, nil, nil, policy.Options{})
		list := s.Wrong()
		if len(list) != 1 || list[0].Rule != bad.Name || !strings.HasPrefix(list[0].Err.Error(), want) || !strings.Contains(list[0].Err.Error(), "must be") {
			t.Errorf("wrong rules are %v, want %s", list, want)
		}
		var o policy.Verdict
		policy.Evaluate(s, &policy.Facts{Path: "/"}, nil, now, &o)
		if got := prefixes(&o); got != "rule/good/hour" {
			t.Errorf("%s: hits are %s, want those of the good rule", want, got)
		}
	}
	overrides := []policy.Override{{Rule: "good", Limit: "hour", Tier: "t", Events: -1}, {Rule: "gone", Limit: "hour", Tier: "t", Events: 1}}
	list := policy.Compile([]policy.Rule{good("good")}, overrides, nil, policy.Options{}).Wrong()
	if len(list) != 1 || list[0].Override != "limit hour, tier t" {
		t.Errorf("wrong overrides are %v", list)
	}
}

func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		host, path string // patterns
		matches    string // host and path of requests
		not        string
	}{
		{"", "/api/v1/*", "/api/v1 /api/v1/x /api/v1/x/y", "/api /api/v10 /api/v2 / /x/api/v1"},
		{"", "/u/*/files", "/u/a/files", "/u/files /u/a/b/files /u/a/files/x /u/a"},
		{"", "/u/*/files/*", "/u/a/files /u/a/files/x/y", "/u/files/x /u/a/b/files"},
		{"", "/", "/", "/a"},
		{"", "/*", "/ /a /a/b", ""},
		{"", "/*/b", "/a/b", "/ /b /a/b/c"},
		{"", "/a/", "/a", "/ /a/b"},
		{"A.test", "", "a.test/", "b.test/ x.a.test/"},
		{"*.A.test.", "", "x.a.test/ y.x.a.test/", "a.test/ xa.test/ .a.test/"},
	} {
		rule := policy.Rule{Name: "r", CountBy: []string{"all"}, Limits: perHour(1)}
		if test.host != "" {
			rule.Hosts = []string{test.host}
		}
		if test.path != "" {
			rule.Paths = []string{test.path}
		}
		// Filed under the path or the host, and filed under the tier because others have both.
		others := []policy.Rule{rule, rule, rule}
		for i := range others {
			others[i].Name += strings.Repeat("x", i+1)
		}
		narrow := rule
		narrow.Tiers = []string{"t"}
		for want, requests := range map[bool]string{true: test.matches, false: test.not} {
			for _, request := range strings.Fields(requests) {
				at := strings.Index(request, "/")
				f := &policy.Facts{Tier: "t", Host: request[:at], Path: request[at:]}
				for _, rules := range [][]policy.Rule{{rule}, append([]policy.Rule{narrow}, others...)} {
					if got := strings.Contains(prefixes(decide(t, rules, f, nil))+" ", "rule/r/hour "); got != want {
						t.Errorf("%s%s matches %s: %v, want %v", test.host, test.path, request, got, want)
					}
				}
			}
		}
	}
}

func TestTheMostSpecificOverrideCounts(t *testing.T) {
	rules := []policy.Rule{{Name: "plan", Limits: perHour(1)}}
	override := policy.Override{Rule: "plan", Limit: "hour"}
	tier, user, key := override, override, override
	tier.Tier, tier.Events = "pro", 2
	user.User, user.Events = "alice", 3
	key.KeyID, key.Events = 7, 4
	other := override
	other.KeyID, other.Events = 8, 5 // another key of the user
	later := user
	later.Events, later.From = 6, now.Add(time.Hour)
	for _, test := range []struct {
		tiers, own []policy.Override
		after      time.Duration
		events     int64
		from       string
	}{
		{nil, nil, 0, 1, "rule"},
		{[]policy.Override{tier}, nil, 0, 2, "tier"},
		{[]policy.Override{tier}, []policy.Override{user, other}, 0, 3, "user"},
		{[]policy.Override{tier}, []policy.Override{user, key}, 0, 4, "key"},
		{[]policy.Override{tier}, []policy.Override{key, user}, 0, 4, "key"},
		{nil, []policy.Override{later, user}, 0, 3, "user"},
		{nil, []policy.Override{later, user}, time.Hour, 6, "user"},
		{nil, []policy.Override{user, later, key}, time.Hour, 4, "key"},
	} {
		s := policy.Compile(rules, test.tiers, nil, policy.Options{Remember: 10})
		id := &policy.Identity{Digest: policy.Digest("k"), Known: true, KeyID: 7, User: "alice", Tier: "pro", Overrides: test.own}
		var o policy.Verdict
		for range 3 {
			policy.Evaluate(s, &policy.Facts{Path: "/"}, id, now.Add(test.after), &o)
			if len(o.Hits) != 1 || o.Hits[0].Limit.Events != test.events || o.Marks[0].From != test.from || o.Hits[0].Key != "alice" || o.Hits[0].Limit.Prefix != "rule/plan/hour" {
				t.Errorf("hit is %+v from %s, want %d from %s", *o.Hits[0].Limit, o.Marks[0].From, test.events, test.from)
			}
		}
	}
}

func TestALimitOfBlackFridayStartsAndEndsByItself(t *testing.T) {
	begin, end := now.Add(time.Hour), now.Add(2*time.Hour)
	rules := []policy.Rule{
		{Name: "friday", Family: "plan", Priority: 9, From: begin, Until: end, Limits: perHour(1)}, {Name: "usual", Family: "plan", Limits: perHour(2)},
	}
	overrides := []policy.Override{{Rule: "usual", Limit: "hour", Tier: "free", Events: 3, From: end}}
	s := policy.Compile(rules, overrides, nil, policy.Options{Remember: 10})
	id := &policy.Identity{Digest: policy.Digest("k"), Known: true, KeyID: 7, User: "alice", Tier: "free", ExpiresAt: end.Add(time.Hour)}
	var o policy.Verdict
	for round := range 3 {
		for _, test := range []struct {
			at     time.Time
			events int64
		}{{now, 2}, {begin.Add(-1000), 2}, {begin, 1}, {end.Add(-1000), 1}, {end, 3}, {end.Add(time.Hour), 0}} {
			for range 3 {
				policy.Evaluate(s, &policy.Facts{Path: "/", RejectUnknown: true}, id, test.at, &o)
				if test.events == 0 && o.Reason != policy.KeyExpired || test.events > 0 && (len(o.Hits) != 1 || o.Hits[0].Limit.Events != test.events) {
					t.Errorf("round %d, at %v: %+v, want %d events", round, test.at, o, test.events)
				}
			}
		}
	}
}
