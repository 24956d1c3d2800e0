package policy_test

import (
	"errors"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

func TestAClientCannotWriteAPathInAnotherWay(t *testing.T) {
	for escaped, want := range map[string]string{
		"/api/v1/x":             "/api/v1/x",
		"":                      "/",
		"/":                     "/",
		"//":                    "/",
		"*":                     "/*",
		"api/v1":                "/api/v1",
		"/api/v1/":              "/api/v1",
		"//api///v1//":          "/api/v1",
		"/api/./v1":             "/api/v1",
		"/api/v1/.":             "/api/v1",
		"/x/../api/v1":          "/api/v1",
		"/../../api/v1":         "/api/v1",
		"/x/%2e%2e/api/v1":      "/api/v1",
		"/x/%2E./api/v1":        "/api/v1",
		"/x/.%2e/api/v1":        "/api/v1",
		"/%61pi/v1":             "/api/v1",
		"/%41pi/v1":             "/Api/v1",
		"/api%2Fv1":             `/api\v1`,
		"/api%2fv1":             `/api\v1`,
		`/api\v1`:               `/api\v1`,
		"/api%5cv1":             `/api\v1`,
		"%2Fapi//%2Fv1%2f/":     `/\api/\v1\`,
		"/a%2F%5cb%2F":          `/a\\b\`,
		"/%2F":                  `/\`,
		"/api/%252e%252e/v1":    "/api/%2e%2e/v1",
		"/api/%zz/%":            "/api/%zz/%",
		"/api/...":              "/api/...",
		"/api/.hidden":          "/api/.hidden",
		"/caf%C3%A9":            "/café",
		"/a;x=1/b":              "/a;x=1/b",
		"/a%3Bx=1/.b":           "/a;x=1/.b",
		"/a;x%2Fb":              `/a;x\b`,
		"/a/..;/b":              "",
		"/a/%2e%2e%3bx/b":       "",
		"/a;x/../b":             "",
		"/.;x":                  "",
		"/a;x%2F../b":           "",
		"/a%2F..;/b":            "",
		"/a/%2e%2e%253b/b":      "/a/..%3b/b",
		"/a%00b":                "/a\x00b",
		"/a%3Fb":                "/a?b",
		"/a/b%2F..%2F..%2Fc":    "",
		"/a/b%2f%2e%2e/c":       "",
		`/a/b\..\..\c`:          "",
		"/a%5c..%5cb":           "",
		"/a/../b%2Fc":           "",
		"/a%2F./b":              "",
		strings.Repeat("/a", 9): strings.Repeat("/a", 9),
	} {
		got, err := policy.NormalPath(escaped)
		if got != want || (err != nil) != (want == "") ||
			err != nil && !errors.Is(err, policy.ErrAmbiguousPath) {
			t.Errorf("NormalPath(%q): got %q, %v, want %q", escaped, got, err, want)
		}
	}
}

// A server may read an encoded slash as a slash, or as part of a segment.
func TestARuleMatchesBothReadingsOfAnEncodedSlash(t *testing.T) {
	for _, step := range []struct {
		pattern, path   string
		blocks, exempts bool
	}{
		{"/u/*/files", "/u/a/files", true, true},
		{"/u/*/files", "/u/a%2Fb/files", true, false},
		{"/u/*/files", `/u/a%5cb/files`, true, false},
		{"/u/*/*/files", "/u/a%2Fb/files", true, false},
		{"/u/*/files", "/u/%2F/files", true, false},
		{"/u/files", "/u/%2F/files", true, false},
		{"/u/*/files", "/u/%2Fa%2F/files", true, true},
		{"/api/*", "/api%2Fv1", true, false},
		{"/api/*", "/%2Fapi%2F", true, false},
		{"/api/*", "/api/a%2Fb", true, true},
		{"/api/v1", "/api%2Fv1", true, false},
		{"/u/*/files", "/u/a%2Fb/other", false, false},
		{"/u/*", "/x%2Fu/a", false, false},
	} {
		for _, remember := range []int{0, 100} {
			path, err := policy.NormalPath(step.path)
			if err != nil {
				t.Fatal(err)
			}
			var o policy.Verdict
			rule := policy.Rule{Name: "r", Action: policy.Block, Paths: []string{step.pattern}}
			policy.Evaluate(policy.Compile([]policy.Rule{rule}, nil, nil, remember),
				&policy.Facts{Path: path}, nil, now, &o)
			blocks := o.Reason == policy.Blocked
			rule.Action = policy.Exempt
			policy.Evaluate(policy.Compile([]policy.Rule{rule}, nil, nil, remember),
				&policy.Facts{Path: path}, nil, now, &o)
			if blocks != step.blocks || o.Exempt != step.exempts {
				t.Errorf("%s of %s: got blocks %v, exempts %v, want %v, %v", step.pattern, step.path, blocks,
					o.Exempt, step.blocks, step.exempts)
			}
		}
	}
}

// A server may ignore the parameters of a path.
func TestAPathWhoseParametersMatterIsAmbiguous(t *testing.T) {
	hour := perHour(9)
	all := []string{"all"}
	rules := []policy.Rule{
		{Name: "closed", Action: policy.Block, Paths: []string{"/admin/*", "/a/b"}},
		{Name: "tried", Action: policy.Block, Mode: settings.Shadow, Paths: []string{"/tried"}},
		{Name: "counted", Mode: settings.Shadow, Paths: []string{"/counted"}, CountBy: all, Limits: hour},
		{Name: "inside", Action: policy.Exempt,
			Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		{Name: "health", Action: policy.Exempt, Paths: []string{"/health"}},
		{Name: "plan", Family: "plan", Priority: 1, CountBy: all, Limits: hour},
		{Name: "login", Family: "plan", Priority: 2, Paths: []string{"/login"}, CountBy: all, Limits: hour},
		{Name: "unlimited", Paths: []string{"/unlimited"}, CountBy: all,
			Limits: []policy.RuleLimit{{Name: "hour", Unlimited: true, Limit: hour[0].Limit}}},
	}
	for _, step := range []struct {
		path, address string
		want          policy.Reason
	}{
		{"/admin", "", policy.Blocked},
		{"/admin;x", "", policy.AmbiguousPath},
		{"/admin;x", "10.1.1.1", policy.NotRefused}, // exempt in both readings
		{"/admin%3b", "", policy.AmbiguousPath},
		{"/admin/;x", "", policy.Blocked},
		{"/;/admin", "", policy.AmbiguousPath},
		{"/a;b%2Fc/b", "", policy.AmbiguousPath},
		{"/a;x%2Fb", "", policy.AmbiguousPath}, // the encoded slash ends the parameter
		{"/a/b;x%2Fc", "", policy.AmbiguousPath},
		{"/x;y%2Fz", "", policy.NotRefused},
		{"/tried;x", "", policy.NotRefused},
		{"/counted;x", "", policy.NotRefused},
		{"/health;x", "", policy.AmbiguousPath},
		{"/login;x", "", policy.AmbiguousPath},
		{"/unlimited;x", "", policy.NotRefused},
		{"/other;x/y;z", "", policy.NotRefused},
	} {
		for _, remember := range []int{0, 100} {
			path, err := policy.NormalPath(step.path)
			if err != nil {
				t.Fatal(err)
			}
			address := netip.MustParseAddr("192.0.2.1")
			if step.address != "" {
				address = netip.MustParseAddr(step.address)
			}
			s := policy.Compile(rules, nil, nil, remember)
			alice := &policy.Identity{Known: true, User: "alice", Tier: "free"}
			var o policy.Verdict
			for range 3 { // the memo has more each time
				policy.Evaluate(s, &policy.Facts{Path: path, Address: address}, alice, now, &o)
				if o.Reason != step.want ||
					o.Reason == policy.AmbiguousPath &&
						(o.Status != 400 || len(o.Hits)+len(o.Marks) > 0 || o.Exempt || o.Rule != "") {
					t.Errorf("remember %d, %s from %s: %+v, want %s", remember, step.path, address, o,
						step.want)
				}
			}
			policy.Evaluate(s, &policy.Facts{Path: "/x", Address: netip.MustParseAddr("192.0.2.1")}, alice,
				now, &o)
			if o.Refused() || prefixes(&o) != "rule/plan/hour" {
				t.Errorf("after %s: %+v", step.path, o)
			}
		}
	}
}

func TestAClientCannotWriteAHostInAnotherWay(t *testing.T) {
	for host, want := range map[string]string{
		"example.com": "example.com", "Example.COM": "example.com", "example.com.": "example.com",
		"example.com..":   "example.com",
		"example.com:443": "example.com", "example.com.:8080": "example.com", "192.0.2.1:80": "192.0.2.1",
		"[::1]": "::1", "[::1]:80": "::1", "[2001:DB8::0:1]:443": "2001:db8::1",
		"2001:db8:0::1": "2001:db8::1", "": "", ":80": "", ".": "",
	} {
		if got := policy.NormalHost(host); got != want {
			t.Errorf("NormalHost(%q): got %q, want %q", host, got, want)
		}
	}
}

// FuzzNormalPath checks that NormalPath is idempotent, and agrees with net/url and path.Clean on valid paths.
func FuzzNormalPath(f *testing.F) {
	for _, seed := range []string{"/", "/a/../b", "/a%2F..%2Fb", `/\..\`, "//a//", "/%2e%2e/%2e", "/%",
		"/a/..;/b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		got, err := policy.NormalPath(escaped)
		if err != nil {
			if !errors.Is(err, policy.ErrAmbiguousPath) || got != "" {
				t.Fatalf("NormalPath(%q): %q, %v", escaped, got, err)
			}
			return
		}
		if !strings.HasPrefix(got, "/") || strings.Contains(got, "//") ||
			got != "/" && strings.HasSuffix(got, "/") || strings.Contains(got+"/", "/../") ||
			strings.Contains(got+"/", "/./") {
			t.Fatalf("NormalPath(%q) is %q", escaped, got)
		}
		if again,
			err := policy.NormalPath((&url.URL{Path: got}).EscapedPath()); err != nil &&
			!strings.Contains(got, `\`) || err == nil && again != got {
			t.Fatalf("NormalPath(%q): got %q, and of that %q, %v, want the same", escaped, got, again, err)
		}
		got = path.Clean(strings.ReplaceAll(got, `\`, "/"))
		if u, err := url.ParseRequestURI(escaped); err == nil && strings.HasPrefix(u.Path, "/") &&
			!strings.Contains(u.Path, `\`) && u.EscapedPath() == escaped {
			if clean := path.Clean(u.Path); clean != got {
				t.Fatalf("NormalPath(%q): got %q, want %q", escaped, got, clean)
			}
		}
	})
}
