package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestLimitsInTraefikMatchInTheWordsOfARule: of several limits, a request is charged to those that match it. Paths
// that servers read in different ways match as in a rule.
func TestLimitsInTraefikMatchInTheWordsOfARule(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	backend := startBackend(t)
	tr := startTraefik(t, []route{{"/", backend, object{"dsn": dsn, "timeout": "30s", "onError": "deny", "zones": []object{
		{"prefix": "all", "limit": "1000 1h", "key": "all"},
		{"prefix": "api", "limit": "1000 1h", "key": "all", "match": object{"paths": []string{"/api/*", "/u/*/files"}}},
		{"prefix": "login", "limit": "2 1h", "key": "all", "match": object{"paths": "/login", "methods": "POST,put"}},
		{"prefix": "host", "limit": "1000 1h", "key": "all", "match": object{"hosts": []string{"*.example.com"}}},
		{"prefix": "plan", "limit": "1000 1h", "key": "all", "match": object{"headers": []string{"x-plan: gold", "X-Trial"}}},
	}}}})
	counted := map[string]int64{}
	for i, c := range []struct {
		method, path, host, want string
		headers                  []string
	}{
		{"GET", "/", "", "all", nil},
		{"GET", "/api", "", "all api", nil},
		{"GET", "//api/./v1/x", "", "all api", nil},
		{"GET", "/API/v1", "", "all", nil},
		{"GET", "/%61pi/v1", "", "all api", nil},
		{"GET", "/api%2Fv1", "", "all api", nil},
		{"GET", "/api;v=1/x", "", "all api", nil},
		{"GET", "/x%2F..%2Fapi/v1", "", "all api", nil}, // /api/v1 to some servers
		{"GET", "/u/alice/files", "", "all api", nil},
		{"GET", "/u/alice/files/x", "", "all", nil},
		{"GET", "/login", "", "all", nil},
		{"POST", "/login/", "", "all login", nil},
		{"PUT", "/login", "", "all login", nil},
		{"GET", "/", "API.Example.com.:80", "all host", nil},
		{"GET", "/", "example.com", "all", nil},
		{"GET", "/", "", "all plan", []string{"X-Plan", "gold"}},
		{"GET", "/", "", "all", []string{"X-Plan", "Gold"}},
		{"GET", "/", "", "all plan", []string{"X-Trial", "1"}},
		{"GET", "/", "", "all", []string{"X-Trial", ""}},
		{"GET", "/api/x", "a.example.com", "all api host plan", []string{"X-Trial", "1"}},
	} {
		r := harness.Get(tr.url+c.path, c.headers...)
		r.Method, r.Host = c.method, c.host
		if got := harness.Ask(t, r).Status; got != http.StatusOK && got != http.StatusBadRequest {
			t.Errorf("%d: %s %s: %d", i, c.method, c.path, got)
		}
		var charged []string
		for _, prefix := range []string{"all", "api", "host", "login", "plan"} {
			n := queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral WHERE prefix = $1", prefix)
			if n > counted[prefix] {
				charged = append(charged, prefix)
			}
			counted[prefix] = n
		}
		got := strings.Join(charged, " ")
		if got != c.want {
			t.Errorf("%d: %s %s %s %q is charged to %s, want %s", i, c.method, c.host, c.path, c.headers, got, c.want)
		}
	}
	refused := harness.Get(tr.url + "/login")
	refused.Method = "POST"
	if a := harness.Ask(t, refused); a.Status != http.StatusTooManyRequests || a.Header.Get("X-RateLimit-Limit") != "2" {
		t.Errorf("%d %v", a.Status, a.Header)
	}
	if got := answersTo(t, 3, tr.url+"/login"); got != "200 200 200" {
		t.Errorf("GET is answered %s", got)
	}
}
