package policy_test

import (
	"net/netip"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// requestOf returns the facts of a request, or false for an ambiguous path.
func requestOf(path, host string) (policy.Facts, bool) {
	normal := policy.NormalPath(path)
	return policy.Facts{DefaultTier: "gold", Method: "GET", Host: policy.NormalHost(host), Path: normal,
		Address: netip.MustParseAddr("192.0.2.1")}, normal != ""
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
		policy.EvaluateIdentity(s, &facts, &policy.Identity{User: "ann", Known: true}, policytest.Now, &v)
		for i := range v.Hits {
			if err := v.Hits[i].Limit.Validate(); err != nil {
				t.Errorf("%s: a hit's limit: got %v, want no error", row, err)
			}
		}
	})
}
