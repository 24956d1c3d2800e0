package reports

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// cacheSettings are those of an nginx that caches all responses, unless they forbid it.
const cacheSettings = `events {}
http {
	proxy_cache_path cache keys_zone=all:1m;
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

// neverCached returns a check that a cache in front gives the refusal of a client to no other client. The
// asks of the client are those of the site.
func neverCached(status int) func(*visit) {
	return func(v *visit) {
		cache := harness.FreeAddress(v)
		harness.RunNginx(v, cache, fmt.Sprintf(cacheSettings, cache, v.trusted))
		for i, want := range []string{fmt.Sprint(status, " MISS no-store"), "200 MISS ", "200 HIT "} {
			address := "X-Forwarded-For: " + []string{"198.51.100.7", "203.0.113.7", "203.0.113.8"}[i]
			r := dial(v, cache, hostOf(v.id)).ask("GET /page", address)
			h := r.Header
			check.Equal(v, fmt.Sprint("client ", i+1),
				fmt.Sprint(r.Status, " ", h.Get("X-Cache"), " ", h.Get("Cache-Control")), want)
		}
		for _, r := range v.got {
			if cc := r.Header.Get("Cache-Control"); r.Status != http.StatusOK && cc != "no-store" {
				v.Errorf("Cache-Control of %d is %q, want no-store", r.Status, cc)
			}
		}
	}
}

// sayNothing checks that no response says how many requests there are or are left.
func sayNothing(v *visit) {
	for _, r := range v.got {
		for name := range r.Header {
			if strings.Contains(strings.ToLower(name), "ratelimit") {
				v.Errorf("a response has the field %s: %s", name, r.Header.Get(name))
			}
		}
	}
}

// leavesEarly checks that of 20 clients who leave before a response, one after another, five reach the
// upstream of a site, and the others are refused.
func leavesEarly(v *visit) {
	g := gateOf(v.id)
	for i := range int64(20) {
		c := v.dial()
		if i < 5 {
			c.send("POST /login", "")
			v.Await("the request", func() bool { return g.arrived.Load() == i+1 })
			_ = c.conn.Close()
		} else if status := c.ask("POST /login", "").Status; status != http.StatusTooManyRequests {
			v.Errorf("client %d gets %d, want 429", i+1, status)
		}
	}
	check.Equal(v, "the clients that reach the upstream", g.arrived.Load(), 5)
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
			asks: []ask{from("198.51.100.7", "404×1")}, check: neverCached(http.StatusNotFound)},
		{policy: " ", sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{ip}',
			per_hour => 1, status => 410);`,
			asks:  []ask{from("198.51.100.7", "200×1"), from("198.51.100.7", "410×1")},
			check: neverCached(http.StatusGone)},
	}},
	{"R39", "near R40", []site{
		{zones: []string{perHour + "status 401 403 = 1, else 0"}, upstream: deniesLate, check: leavesEarly},
		{zones: []string{perHour + "header X-Cost"}, upstream: deniesLate, check: leavesEarly},
	}},
}
