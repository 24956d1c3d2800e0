package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// requestOf returns the facts of a request, or false for an ambiguous path.
func requestOf(path, host string) (policy.Facts, bool) {
	normal, err := policy.NormalPath(path)
	return policy.Facts{Tier: "gold", Method: "GET", Host: policy.NormalHost(host), Path: normal,
		Address: netip.MustParseAddr("192.0.2.1")}, err == nil
}

// FuzzRulesAreUsableOrReported checks that every rule is either usable or reported, that the hits of a usable
// one are valid, and that no request causes a panic.
func FuzzRulesAreUsableOrReported(f *testing.F) {
	for _, row := range []string{
		`{"Paths":["/u/*/files","/api/*"],"Hosts":["*.example.com","[::1]"],"Methods":["GET"],
		"count_by":["user|header:X-Tenant","ip/128"],
		"Limits":[{"Name":"l","Limit":{"Algorithm":1,"Events":5,"Window":1000000000}}]}`,
		`{"Action":"block","Networks":["192.0.2.0/24","::ffff:0:0/90"],"Status":451,"RetryAfter":1}`,
		`{"Action":"exempt","Mode":"shadow","From":"2026-01-31T00:00:00Z","Family":"f",
		"Settle":"status 401 = 1, else 0","Tiers":["gold"]}`,
		`{"Action":"later"}`, `{"Limits":[{}]}`, `[]`,
	} {
		f.Add(row, "/api/x%2Fy;z", "a.example.com:80")
	}
	f.Fuzz(func(t *testing.T, row, path, host string) {
		facts, ok := requestOf(path, host)
		rows := []string{`{"Rule":` + row + `}`, `{"Override":` + row + `}`}
		rules, overrides, err := policy.DecodeRules(rows)
		if err != nil || !ok {
			return
		}
		s := policy.Compile(rules, overrides, nil, 4)
		if s.Rules()+len(s.Unusable()) == 0 && rules[0].Mode != option.Off {
			t.Errorf("got neither a rule nor a report of %s, want one of them", row)
		}
		var v policy.Verdict
		policy.Evaluate(s, &facts, &policy.Identity{User: "ann", Known: true}, policytest.Now, &v)
		for i := range v.Hits {
			if err := v.Hits[i].Limit.Validate(); err != nil {
				t.Errorf("%s: a hit's limit: got %v, want no error", row, err)
			}
		}
	})
}

// FuzzPatternsMatchLikeLoop checks that patterns of hosts and paths match like a loop over their segments.
func FuzzPatternsMatchLikeLoop(f *testing.F) {
	for pattern, paths := range map[string]string{
		"/api/v1/*":    "/api/v1 /api/v1/x /api/v1/x/y /api /api/v10 / /x/api/v1",
		"/u/*/files":   "/u/a/files /u/files /u/a/b/files /u/a/files/x",
		"/u/*/files/*": "/u/a/files /u/a/files/x/y /u/files/x /u/a/b/files",
		"/":            "/ /a", "/*": "/ /a /a/b", "/*/b": "/a/b / /b /a/b/c", "/*/": "/ /a /a/b",
	} {
		for _, path := range strings.Fields(paths) {
			f.Add(pattern, "*.a.test", path, "x.a.test")
		}
	}
	for pattern, hosts := range map[string]string{
		"a.test":   "a.test A.test:80 b.test x.a.test",
		"*.a.test": "x.a.test y.x.a.test a.test xa.test .a.test",
	} {
		for _, host := range strings.Fields(hosts) {
			f.Add("/*", pattern, "/a", host)
		}
	}
	f.Fuzz(func(t *testing.T, pathPattern, hostPattern, path, host string) {
		facts, ok := requestOf(path, host)
		world := &policytest.World{Rules: []policy.Rule{{Name: "r", Action: policy.Block,
			Paths: []string{pathPattern}, Hosts: []string{hostPattern}}}}
		s := policy.Compile(world.Rules, nil, nil, 0)
		if !ok || len(s.Unusable()) > 0 || strings.ContainsAny(facts.Path, `\;`) ||
			policy.NormalHost(hostPattern) != hostPattern {
			return
		}
		var v policy.Verdict
		policy.Evaluate(s, &facts, nil, policytest.Now, &v)
		got, want := policytest.FormatVerdict(&v), newNaive(world).decide(&facts, nil, policytest.Now)
		if got != want {
			t.Errorf("host pattern %q, path pattern %q, host %q, path %q: got %s, want %s", hostPattern,
				pathPattern, facts.Host, facts.Path, got, want)
		}
	})
}
