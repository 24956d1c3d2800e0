package policy_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// A server may ignore the case of a path, and answers HEAD as GET. Rules that limit or block match such
// requests, and rules that exempt do not. The memo fills in steps, so each request is evaluated three times.
func TestRestrictionsIgnoreSpellingAndExemptionsDoNot(t *testing.T) {
	for _, step := range []struct {
		pattern, method, path string
		restricts, frees      bool
	}{
		{pattern: "/admin/*", path: "/admin/x", restricts: true, frees: true},
		{pattern: "/admin/*", path: "/Admin", restricts: true},
		{pattern: "/admin/*", path: "/ADMIN/x", restricts: true},
		{pattern: "/Admin/*", path: "/admin/x", restricts: true},
		{pattern: "/Admin/*", path: "/Admin/x", restricts: true, frees: true},
		{pattern: "/u/*/Files", path: "/U/Ann/filES", restricts: true},
		{pattern: "/*/Files", path: "/a/files", restricts: true},
		{pattern: "/admin/x", path: "/%41dmin%2FX", restricts: true},
		{pattern: "/caf\u00e9", path: "/CAF%C3%A9", restricts: true},
		{pattern: "/caf\u00e9", path: "/CAF%C3%89"}, // only ASCII letters
		{pattern: "/ok", path: "/o%E2%84%AA"},       // the Kelvin sign is no k
		{pattern: "/admin/*", path: "/administration"},
		{pattern: "/admin/*", method: "HEAD", path: "/admin/x", restricts: true},
		{pattern: "/admin/*", method: "head", path: "/Admin/x", restricts: true},
		{pattern: "/admin/*", method: "POST", path: "/admin/x"},
	} {
		method := step.method
		if method == "" {
			method = "GET"
		}
		path, err := policy.NormalPath(step.path)
		if err != nil {
			t.Fatal(err)
		}
		conditions, err := policy.NewConditions(nil, []string{step.pattern}, []string{"get"})
		if err != nil {
			t.Fatal(err)
		}
		if got := conditions.Hold(method, "a.test", step.path); got != step.restricts {
			t.Errorf("match %s, %s %s: got %v, want %v", step.pattern, method, step.path, got, step.restricts)
		}
		for action, want := range map[policy.Action]bool{
			policy.Block: step.restricts, policy.Charge: step.restricts, policy.Exempt: step.frees,
		} {
			rule := policy.Rule{Name: "r", Action: action, Paths: []string{step.pattern},
				Methods: []string{"get"}}
			if action == policy.Charge {
				rule.Limits = []policy.RuleLimit{hourly(9)}
			}
			for _, remember := range []int{0, 8} {
				s := policy.Compile([]policy.Rule{rule}, nil, nil, remember)
				v := evaluateThrice(s, method, path)
				if got := v.Reason == policy.Blocked || v.Exempt || len(v.Hits) > 0; got != want {
					t.Errorf("%s %s, %s %s: got %v, want %v", action, step.pattern, method, step.path, got,
						want)
				}
			}
		}
	}
}

func evaluateThrice(s *policy.Snapshot, method, path string) *policy.Verdict {
	alice := &policy.Identity{Known: true, User: "alice", Tier: "free"}
	var v policy.Verdict
	for range 3 {
		policy.Evaluate(s, &policy.Facts{Method: method, Path: path}, alice, now, &v)
	}
	return &v
}

func hourly(events int64) policy.RuleLimit {
	l := policy.RuleLimit{Name: "hour"}
	l.Limit.Events = events
	l.Limit.Window = 3600e9
	return l
}

// matchesExactly reports whether the method and the path match a rule as they are.
func (r *naiveRule) matchesExactly(f *policy.Facts) bool {
	path := strings.Split(f.Path, "/")
	return anyMatches(r.Methods, func(m string) bool { return m == strings.ToUpper(f.Method) }) &&
		anyMatches(r.paths, func(p []string) bool { return pathMatches(p, path) })
}

// matchesWidely is like matchesExactly, but ignores case in the path, and GET covers HEAD.
func (r *naiveRule) matchesWidely(f *policy.Facts) bool {
	path := strings.Split(strings.ToLower(f.Path), "/")
	return anyMatches(r.Methods, func(m string) bool {
		return m == strings.ToUpper(f.Method) || m == "GET" && f.Method == "HEAD"
	}) && anyMatches(r.paths, func(p []string) bool {
		return pathMatches(strings.Split(strings.ToLower(strings.Join(p, "\n")), "\n"), path)
	})
}
