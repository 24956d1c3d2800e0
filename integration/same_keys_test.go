package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestTheProxiesMakeTheSameKeys of one request, as docs/traefik.md says. A wrong setting of the
// plugin removes its route.
func TestTheProxiesMakeTheSameKeys(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	keys := []struct{ key, want string }{
		{"{client_ip}", "127.0.0.1"}, {"{remote_ip}", "127.0.0.1"}, {"{remote_host}", "127.0.0.1"},
		{"{host}", "api.example.test"}, {"{header.Host}", "api.example.test"},
		{"{hostport}", "api.example.test.:8443"},
		{"{port}", "8443"}, {"{labels.1}", "test"}, {"{labels.9}", ""}, {"{method}", "GET"},
		{"{scheme}", "http"},
		{"{path}", "/b/2001:db8::1"}, {"{dir}", "/b/"}, {"{file}", "2001:db8::/64"}, {"{path.0}", "b"},
		{"{path.1}", "2001:db8::/64"},
		{"{path.9}", ""}, {"{uri}", "/b/2001:db8::1?q=x&y=z"}, {"{query}", "q=x&y=z"},
		{"{query.q}", "x"}, {"{query.y}", "z"}, {"{query.ip}", ""}, {"{header.X-Six}", "2001:db8:0:1::/64"},
		{"{header.X-Mapped}", "192.0.2.7"},
		{"{header.X-Two}", "one,two"}, {"{cookie.sid}", "abc"},
		{"a-{host}-{method}", "a-api.example.test-GET"},
		{"{path}|{dir}|{path.0}|{file}|{uri}|{query}|{query.q}",
			"/b/2001:db8::1|/b/|b|2001:db8::/64|/b/2001:db8::1?q=x&y=z|q=x&y=z|x"},
	}
	var zones []object
	for i, k := range keys {
		zones = append(zones, object{"prefix": fmt.Sprint("PROXY", i), "key": k.key, "limit": "10 1h",
			"hashKey": false})
	}
	routes := []route{{"/b", "", decideAlways(object{"zones": zones})}}
	c := startCaddy(t, dsn, routes...)
	tr := startTraefik(t, append(routes, route{"/wrong", "", object{"prefix": "p", "limit": "no limit"}}),
		"DATABASE_URL="+dsn)
	for _, url := range []string{tr.url, c.url} {
		request := harness.Get(url+"/a/../b//2001:db8::1?q=x;y=z", "X-Six", "2001:DB8::1:0:0:0:1", "X-Mapped",
			"::ffff:192.0.2.7", "X-Two", "one", "Cookie", "Sid=abc")
		request.Header.Add("X-Two", "two")
		request.Host = "API.Example.test.:8443"
		if answer := harness.Ask(t, request); answer.Header.Get("X-RateLimit-Limit") == "" {
			t.Fatalf("%s answers %d %v", url, answer.Status, answer.Header)
		}
	}
	for _, proxy := range []string{"traefik", "caddy"} {
		for i, k := range keys {
			got := cluster.Query[string](t, dsn, "SELECT key FROM rate_limit_ephemeral WHERE prefix = $1",
				fmt.Sprint(proxy, i))
			if got != k.want {
				t.Errorf("%s: %s is %q, want %q", proxy, k.key, got, k.want)
			}
		}
	}
	if answer := harness.Ask(t, harness.Get(tr.url+"/wrong")); answer.Status != http.StatusNotFound {
		t.Errorf("a route with a wrong setting is answered %d", answer.Status)
	}
}
