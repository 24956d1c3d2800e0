package reports

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// cacheSettings are those of an nginx that caches all responses, unless they forbid it.
const cacheSettings = `%s
events {}
http {
	access_log off;
	client_body_temp_path DIR/body;
	proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/fastcgi;
	uwsgi_temp_path DIR/uwsgi;
	scgi_temp_path DIR/scgi;
	proxy_cache_path DIR/cache keys_zone=all:1m;
	server {
		listen %s;
		location / {
			proxy_pass http://%s;
			proxy_set_header Host $http_host;
			proxy_cache all;
			proxy_cache_key $http_host$uri;
			proxy_cache_valid any 1h;
			add_header X-Cache $upstream_cache_status always;
		}
	}
}
`

// startCache starts an nginx with a cache in front of a proxy, and returns its address.
func startCache(t *testing.T, p *proxy) string {
	t.Helper()
	program, err := harness.Installed(t.Context(), "nginx")
	if err != nil {
		t.Fatal(err)
	}
	dir, address, user := t.TempDir(), harness.FreeAddress(t), ""
	if os.Geteuid() == 0 { // the folder is root's
		user = "user root;"
	}
	file := filepath.Join(dir, "nginx.conf")
	text := strings.ReplaceAll(fmt.Sprintf(cacheSettings, user, address, p.trusted), "DIR", dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := harness.Start(t, harness.Program{Name: "nginx", Path: program, Dir: dir, Args: []string{"-e",
		"stderr", "-p", dir, "-c", file, "-g", "daemon off; pid " + filepath.Join(dir, "pid") + ";"}})
	n.AwaitAddress(t, address)
	return address
}

// neverCached returns a check that a cache in front gives the refusal of a client to no other client. The
// asks of the client are those of the site.
func neverCached(status int) func(*testing.T, *proxy, string, []*harness.Response) {
	return func(t *testing.T, p *proxy, id string, got []*harness.Response) {
		cache := startCache(t, p)
		for i, want := range []string{fmt.Sprint(status, " MISS no-store"), "200 MISS ", "200 HIT "} {
			address := "X-Forwarded-For: " + []string{"198.51.100.7", "203.0.113.7", "203.0.113.8"}[i]
			r := dial(t, cache, hostOf(id)).ask(t, "GET /page", address)
			h := r.Header
			check.Equal(t, fmt.Sprint(id, ", client ", i+1),
				fmt.Sprint(r.Status, " ", h.Get("X-Cache"), " ", h.Get("Cache-Control")), want)
		}
		for _, r := range got {
			if cc := r.Header.Get("Cache-Control"); r.Status != http.StatusOK && cc != "no-store" {
				t.Errorf("%s: Cache-Control of %d is %q, want no-store", id, r.Status, cc)
			}
		}
	}
}

// sayNothing checks that no response says how many requests there are or are left.
func sayNothing(t *testing.T, _ *proxy, id string, got []*harness.Response) {
	for _, r := range got {
		for name := range r.Header {
			if strings.Contains(strings.ToLower(name), "ratelimit") {
				t.Errorf("%s: a response has the field %s: %s", id, name, r.Header.Get(name))
			}
		}
	}
}

// leavesEarly checks that of 20 clients who leave before a response, one after another, five reach the
// upstream of a site, and the others are refused.
func leavesEarly(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	g := gateOf(id)
	for i := range int64(20) {
		c := dial(t, p.trusted, hostOf(id))
		if i < 5 {
			c.send(t, "POST /login", "")
			p.Await(t, id+": the request", func() bool { return g.arrived.Load() == i+1 })
			_ = c.conn.Close()
		} else if status := c.ask(t, "POST /login", "").Status; status != http.StatusTooManyRequests {
			t.Errorf("%s: client %d gets %d, want 429", id, i+1, status)
		}
	}
	check.Equal(t, id+": the clients that reach the upstream", g.arrived.Load(), 5)
}

// deniesLate is an upstream that answers 401 when the client has left.
func deniesLate(w http.ResponseWriter, r *http.Request) {
	gateOf(strings.TrimSuffix(r.Host, hostOf(""))).arrived.Add(1)
	<-r.Context().Done()
	w.Header().Set("X-Cost", "0")
	w.WriteHeader(http.StatusUnauthorized)
}

const perHour = "key all\nalgorithm fixed_window\nlimit 5 1h\nsettle "

var caches = []report{
	{"R33", "stefanprodan/AspNetCoreRateLimit#8; Kong/kong#2435", []site{{handler: "fields off",
		zones: []string{"limit 3 1h"}, asks: []ask{{n: 3, want: "200×3", body: "ok"},
			{want: "429×1", body: `{"error":"Too many requests","retryAfter":…`}}, check: sayNothing}}},
	{"R36", "RFC 9110, 15.1; RFC 9111, 4.2.2", []site{
		{policy: " ", sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', action => 'block',
			status => 404, networks => '{198.51.100.0/24}');`,
			asks: []ask{from("198.51.100.7", 1, "404×1")}, check: neverCached(http.StatusNotFound)},
		{policy: " ", sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{ip}',
			per_hour => 1, status => 410);`,
			asks:  []ask{from("198.51.100.7", 1, "200×1"), from("198.51.100.7", 1, "410×1")},
			check: neverCached(http.StatusGone)},
	}},
	{"R39", "near R40", []site{
		{zones: []string{perHour + "status 401 403 = 1, else 0"}, upstream: deniesLate, check: leavesEarly},
		{zones: []string{perHour + "header X-Cost"}, upstream: deniesLate, check: leavesEarly},
	}},
}
