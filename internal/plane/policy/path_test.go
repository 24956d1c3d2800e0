package policy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// NormalPath returns the same path for all of its spellings. An encoded slash or backslash becomes a
// backslash. A path that servers may read in different ways is ambiguous, which is an error.
func TestClientCannotDisguisePath(t *testing.T) {
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
		var wantErr error
		if want == "" {
			wantErr = policy.ErrAmbiguousPath
		}
		if got, err := policy.NormalPath(escaped); got != want || !errors.Is(err, wantErr) {
			t.Errorf("NormalPath(%q): got %q, %v, want %q, %v", escaped, got, err, want, wantErr)
		}
	}
}

// evaluatePath evaluates a request of alice to a path three times, because the memo fills in steps.
func evaluatePath(t *testing.T, rules []policy.Rule, remember int, path, address string) *policy.Verdict {
	t.Helper()
	path, err := policy.NormalPath(path)
	if err != nil {
		t.Fatal(err)
	}
	s := policy.Compile(rules, nil, nil, remember)
	alice := &policy.Identity{Known: true, User: "alice", Tier: "free"}
	var v policy.Verdict
	for range 3 {
		policy.Evaluate(s, &policy.Facts{Path: path, Address: netip.MustParseAddr(address)}, alice, now, &v)
	}
	return &v
}

// A server may read an encoded slash as a slash, or as part of a segment. A block rule applies if one of the
// two readings matches, and an exemption only if both do.
func TestRuleMatchesBothReadingsOfEncodedSlash(t *testing.T) {
	for _, step := range []struct {
		pattern, path   string
		blocks, exempts bool
	}{
		{pattern: "/u/*/files", path: "/u/a/files", blocks: true, exempts: true},
		{pattern: "/u/*/files", path: "/u/a%2Fb/files", blocks: true},
		{pattern: "/u/*/files", path: `/u/a%5cb/files`, blocks: true},
		{pattern: "/u/*/*/files", path: "/u/a%2Fb/files", blocks: true},
		{pattern: "/u/*/files", path: "/u/%2F/files", blocks: true},
		{pattern: "/u/files", path: "/u/%2F/files", blocks: true},
		{pattern: "/u/*/files", path: "/u/%2Fa%2F/files", blocks: true, exempts: true},
		{pattern: "/api/*", path: "/api%2Fv1", blocks: true},
		{pattern: "/api/*", path: "/%2Fapi%2F", blocks: true},
		{pattern: "/api/*", path: "/api/a%2Fb", blocks: true, exempts: true},
		{pattern: "/api/v1", path: "/api%2Fv1", blocks: true},
		{pattern: "/u/*/files", path: "/u/a%2Fb/other"},
		{pattern: "/u/*", path: "/x%2Fu/a"},
	} {
		for _, remember := range []int{0, 100} {
			rule := policy.Rule{Name: "r", Action: policy.Block, Paths: []string{step.pattern}}
			blocks := evaluatePath(t, []policy.Rule{rule}, remember, step.path, "192.0.2.1").Refused()
			rule.Action = policy.Exempt
			exempts := evaluatePath(t, []policy.Rule{rule}, remember, step.path, "192.0.2.1").Exempt
			if blocks != step.blocks || exempts != step.exempts {
				t.Errorf("%s of %s: got blocks %v, exempts %v, want %v, %v", step.pattern, step.path, blocks,
					exempts, step.blocks, step.exempts)
			}
		}
	}
}

// A server may ignore the parameters of a path, such as ;x. If enforced rules match the path only with or
// only without them, the request is refused.
func TestPathWithDecisiveParametersIsAmbiguous(t *testing.T) {
	hour := perHour(9)
	all := []string{"all"}
	rules := []policy.Rule{
		{Name: "closed", Action: policy.Block, Paths: []string{"/admin/*", "/a/b"}},
		{Name: "tried", Action: policy.Block, Mode: option.Shadow, Paths: []string{"/tried"}},
		{Name: "counted", Mode: option.Shadow, Paths: []string{"/counted"}, CountBy: all, Limits: hour},
		{Name: "inside", Action: policy.Exempt,
			Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		{Name: "health", Action: policy.Exempt, Paths: []string{"/health"}},
		{Name: "plan", Family: "plan", Priority: 1, CountBy: all, Limits: hour},
		{Name: "login", Family: "plan", Priority: 2, Paths: []string{"/login"}, CountBy: all, Limits: hour},
		{Name: "unlimited", Paths: []string{"/unlimited"}, CountBy: all,
			Limits: []policy.RuleLimit{{Name: "hour", Unlimited: true, Limit: hour[0].Limit}}},
	}
	for want, paths := range map[policy.Reason][]string{
		policy.Blocked: {"/admin", "/admin/;x"},
		policy.AmbiguousPath: {"/admin;x", "/admin%3b", "/;/admin", "/a;b%2Fc/b", "/health;x", "/login;x",
			"/a;x%2Fb", "/a/b;x%2Fc"}, // in the last two, the encoded slash ends the parameter
		policy.NotRefused: {"/x;y%2Fz", "/tried;x", "/counted;x", "/unlimited;x", "/other;x/y;z"},
	} {
		for _, path := range paths {
			for _, remember := range []int{0, 100} {
				v := evaluatePath(t, rules, remember, path, "192.0.2.1")
				if v.Reason != want {
					t.Errorf("remember %d, %s: got %+v, want the reason %q", remember, path, v, want)
				}
				got := fmt.Sprint(v.Status, v.Exempt, v.Hits, v.Terms, v.Rule)
				if want == policy.AmbiguousPath && got != "400 false [] []" {
					t.Errorf("remember %d, %s: got %s, want 400 without a rule", remember, path, got)
				}
			}
		}
	}
	if v := evaluatePath(t, rules, 100, "/admin;x", "10.1.1.1"); !v.Exempt {
		t.Errorf("both readings are exempt: got %+v, want Exempt", v)
	}
}

// NormalHost returns the same host for all of its spellings.
func TestClientCannotDisguiseHost(t *testing.T) {
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

// FuzzNormalPathIsIdempotent checks that NormalPath is idempotent and agrees with net/url and path.Clean on
// valid paths.
func FuzzNormalPathIsIdempotent(f *testing.F) {
	for _, seed := range []string{"/", "/a/../b", "/a%2F..%2Fb", `/\..\`, "//a//", "/%2e%2e/%2e", "/%",
		"/a/..;/b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		got, err := policy.NormalPath(escaped)
		if err != nil {
			if !errors.Is(err, policy.ErrAmbiguousPath) || got != "" {
				t.Fatalf("NormalPath(%q): got %q, %v, want ErrAmbiguousPath and no path", escaped, got, err)
			}
			return
		}
		if !path.IsAbs(got) || path.Clean(got) != got {
			t.Fatalf("NormalPath(%q): got %q, want a path without empty and dot segments", escaped, got)
		}
		again, err := policy.NormalPath((&url.URL{Path: got}).EscapedPath())
		isAmbiguous := err != nil && strings.Contains(got, `\`)
		if again != got && !isAmbiguous {
			t.Fatalf("NormalPath(%q): got %q, and for that %q, %v, want the same", escaped, got, again, err)
		}
		got = path.Clean(strings.ReplaceAll(got, `\`, "/"))
		u, err := url.ParseRequestURI(escaped)
		isPlain := err == nil && path.IsAbs(u.Path) && !strings.Contains(u.Path, `\`)
		if isPlain && u.EscapedPath() == escaped && path.Clean(u.Path) != got {
			t.Fatalf("NormalPath(%q): got %q, want %q", escaped, got, path.Clean(u.Path))
		}
	})
}
