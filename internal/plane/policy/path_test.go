package policy_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// A client cannot evade a rule by another form of its path, host or address. The lines of the transcript are:
//
//	path PATH, host HOST         the form that rules match
//	rule PATTERN METHOD PATH     what applies of three rules for GET that differ in their action, and of a
//	                             matcher of Traefik, "match"
//	networks LIST ~ ADDRESS      the same of rules for networks, and of bans; the address may be unknown
//	ask ADDRESS PATH             what decisiveRules decide
//	count HOW KEYS ~ HEADERS     see countedAs; so are the kinds accepted, preflight and routed
func TestClientCannotDisguiseItself(t *testing.T) {
	golden.ReplayLines(t, "testdata/forms/*.txt", func(t *testing.T, kind, text string) string {
		words := strings.Fields(text + " . .")
		switch kind {
		case "path":
			return cmp.Or(policy.NormalPath(text), "ambiguous")
		case "host":
			return policy.NormalHost(text)
		case "rule":
			return applyTo(t, policy.Rule{Paths: words[:1], Methods: []string{"get"}}, words[1], words[2])
		case "networks":
			return applyFrom(t, text)
		case "count", "accepted", "preflight", "routed":
			return countedAs(t, kind, text)
		}
		return evaluated(t, decisiveRules, &policy.Facts{Path: policy.NormalPath(words[1]),
			Address: netip.MustParseAddr(words[0])})
	})
}

// evaluated returns what rules decide for a request of alice. It evaluates the request with and without a
// memo, which fills in steps, so it does so three times.
func evaluated(t *testing.T, rules []policy.Rule, f *policy.Facts) string {
	t.Helper()
	alice := &policy.Identity{Known: true, User: "alice", Tier: "free"}
	texts := map[string]bool{}
	text := ""
	for _, memoSize := range []int{0, 100} {
		s := policy.Compile(rules, nil, nil, memoSize)
		for range 3 {
			var v policy.Verdict
			policy.EvaluateIdentity(s, f, alice, now, &v)
			text = "passes"
			switch {
			case v.Refused():
				text = strings.TrimSpace(fmt.Sprint(v.Reason, " ", v.Status, " ", v.Rule))
			case v.Exempt:
				text = "exempt"
			case len(v.Hits) > 0:
				text = "charged " + prefixes(&v)
			}
			texts[text] = true
		}
	}
	if len(texts) != 1 {
		t.Errorf("%+v: got %v, want the same with a memo", f, texts)
	}
	return text
}

// actionsOf returns the first words of what a rule decides for a request, with each action.
func actionsOf(t *testing.T, r policy.Rule, f *policy.Facts) (words []string) {
	t.Helper()
	r.Name, r.CountBy = "r", []string{"ip"}
	for _, action := range []policy.Action{policy.ActionLimit, policy.ActionBlock, policy.ActionExempt} {
		r.Action, r.Limits = action, nil
		if action == policy.ActionLimit {
			r.Limits = perHour(9)
		}
		if text := evaluated(t, []policy.Rule{r}, f); text != "passes" {
			words = append(words, strings.Fields(text)[0])
		}
	}
	return words
}

// applyTo returns what applies to a request with a method and a path.
func applyTo(t *testing.T, r policy.Rule, method, sent string) string {
	words := actionsOf(t, r, &policy.Facts{Method: method, Path: policy.NormalPath(sent)})
	conditions, err := policy.NewConditions(nil, r.Paths, r.Methods)
	if err != nil {
		t.Fatal(err)
	}
	if conditions.Match(method, "a.test", sent) {
		words = append(words, "match")
	}
	return strings.Join(words, " ")
}

// applyFrom returns what applies to a request from an address, for networks.
func applyFrom(t *testing.T, text string) string {
	list, address, _ := strings.Cut(text, " ~ ")
	r, f := policy.Rule{}, &policy.Facts{Path: "/"}
	if address != "" {
		f.Address = netip.MustParseAddr(address)
	}
	var bans []policy.Ban
	for network := range strings.FieldsSeq(list) {
		r.Networks = append(r.Networks, netip.MustParsePrefix(network))
		bans = append(bans, policy.Ban{Network: netip.MustParsePrefix(network)})
	}
	words := actionsOf(t, r, f)
	var v policy.Verdict
	policy.EvaluateIdentity(policy.Compile(nil, nil, bans, 0), f, nil, now, &v)
	if v.Reason == policy.Banned {
		words = append(words, "banned")
	}
	return strings.Join(words, " ")
}

// decisiveRules are rules for paths and for all paths.
var decisiveRules = []policy.Rule{
	{Name: "closed", Action: policy.ActionBlock, Paths: []string{"/admin/*", "/a/b"}},
	{Name: "tried", Action: policy.ActionBlock, Mode: option.Shadow, Paths: []string{"/tried"}},
	{Name: "counted", Mode: option.Shadow, Paths: []string{"/counted"}, CountBy: []string{"all"},
		Limits: perHour(9)},
	{Name: "inside", Action: policy.ActionExempt,
		Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	{Name: "health", Action: policy.ActionExempt, Paths: []string{"/health"}},
	{Name: "plan", Family: "plan", Priority: 1, CountBy: []string{"all"}, Limits: perHour(9)},
	{Name: "login", Family: "plan", Priority: 2, Paths: []string{"/login"}, CountBy: []string{"all"},
		Limits: perHour(9)},
	{Name: "unlimited", Paths: []string{"/unlimited"}, CountBy: []string{"all"},
		Limits: []policy.RuleLimit{{Name: "hour", Unlimited: true, Limit: perHour(9)[0].Limit}}},
}

// FuzzNormalPathIsIdempotent checks that NormalPath is idempotent and agrees with net/url and path.Clean on
// valid paths.
func FuzzNormalPathIsIdempotent(f *testing.F) {
	for _, seed := range []string{"/", "/a/../b", "/a%2F..%2Fb", `/\..\`, "//a//", "/%2e%2e/%2e", "/%",
		"/a/..;/b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		got := policy.NormalPath(escaped)
		if got == "" {
			return
		}
		if !path.IsAbs(got) || path.Clean(got) != got {
			t.Fatalf("NormalPath(%q): got %q, want a path without empty and dot segments", escaped, got)
		}
		repeated := policy.NormalPath((&url.URL{Path: got}).EscapedPath())
		isAmbiguous := repeated == "" && strings.Contains(got, `\`)
		if repeated != got && !isAmbiguous {
			t.Fatalf("NormalPath(%q): got %q, and for that %q, want the same", escaped, got, repeated)
		}
		got = path.Clean(strings.ReplaceAll(got, `\`, "/"))
		u, err := url.ParseRequestURI(escaped)
		isPlain := err == nil && path.IsAbs(u.Path) && !strings.Contains(u.Path, `\`)
		if isPlain && u.EscapedPath() == escaped && path.Clean(u.Path) != got {
			t.Fatalf("NormalPath(%q): got %q, want %q", escaped, got, path.Clean(u.Path))
		}
	})
}
