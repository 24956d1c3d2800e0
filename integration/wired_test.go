package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const problemJSON = "application/problem+json"

// wired are settings of a limit as both proxies have them, and what requests get. What each setting means in full
// is tested in internal/proxy/edge.
var wired = []struct {
	name    string
	caddy   string
	traefik object
	asked   []wiredRequest
}{
	{"limits", "key {header.X-User}\nlimits {header.X-Plan} {\n\tgold 1000 1h\n\tdefault 2 1h\n}",
		object{"key": "{header.X-User}", "limits": "{header.X-Plan} gold 1000 1h, default 2 1h"}, []wiredRequest{
			{"", []string{"X-User", "ann"}, "200 2 1"}, {"", []string{"X-User", "ann"}, "200 2 0"}, {"", []string{"X-User", "ann"}, "429 2 0"},
			{"", []string{"X-User", "ann", "X-Plan", "gold"}, "200 1000 997"}, {"", []string{"X-User", "bob"}, "200 2 1"},
		}},
	{"alternatives", "key {header.X-Api-Key} | {client_ip}\nlimit 1 1h",
		object{"key": "{header.X-Api-Key} | {client_ip}", "limit": "1 1h"}, []wiredRequest{
			{"", []string{"X-Api-Key", "k1"}, "200 1 0"}, {"", []string{"X-Api-Key", "k1"}, "429 1 0"},
			{"", []string{"X-Api-Key", "127.0.0.1"}, "200 1 0"}, {"", nil, "200 1 0"}, {"", []string{"X-Api-Key", ""}, "429 1 0"},
		}},
	{"shadow", "limit 1 1h\nmode shadow", object{"limit": "1 1h", "mode": "shadow"}, []wiredRequest{{"", nil, "200  "}, {"", nil, "200  "}}},
	{"off", "limit 1 1h\nmode off", object{"limit": "1 1h", "mode": "off"}, []wiredRequest{{"", nil, "200  "}, {"", nil, "200  "}}},
	{"match", "match {\n\tpath /match/x\n\tmethod GET\n}\nlimit 1 1h",
		object{"match": object{"paths": "/match/x", "methods": "GET"}, "limit": "1 1h"}, []wiredRequest{
			{"/x", nil, "200 1 0"}, {"/x", nil, "429 1 0"}, {"/y", nil, "200  "}, {"//x", nil, "429 1 0"},
		}},
	{"wait", "algorithm gcra\nlimit 10 1s\nburst 1\nwait up to 30s",
		object{"algorithm": "gcra", "limit": "10 1s", "burst": "1", "wait": "up to 30s"}, []wiredRequest{{"", nil, "200 1 0"}, {"", nil, "200 1 0"}}},
	{"problem", "limit 1 1h", object{"limit": "1 1h"}, []wiredRequest{
		{"", []string{"Accept", problemJSON}, "200 1 0"}, {"", []string{"Accept", problemJSON}, "429 1 0 " + problemJSON}, {"", nil, "429 1 0"},
	}},
}

// wiredRequest is a request to a path, and its answer: the status, the limit and what is left of it, and the content
// type if that is not application/json.
type wiredRequest struct {
	path    string
	headers []string
	want    string
}

func TestBothProxiesHaveEachSetting(t *testing.T) {
	t.Parallel()
	dsn, backend := cluster.Open(t), startBackend(t)
	var inCaddy []caddyRoute
	var inTraefik []route
	for _, w := range wired {
		inCaddy = append(inCaddy, caddyRoute{"/" + w.name + "*", []string{fmt.Sprintf("pg_ratelimit {\n\ttimeout 30s\n\ton_error deny\n\tzone caddy-%s {\n%s\n}\n}", w.name, w.caddy)}})
		w.traefik["prefix"] = "traefik-" + w.name
		inTraefik = append(inTraefik, route{"/" + w.name, backend, decideAlways(object{"dsn": dsn, "zones": []object{w.traefik}})})
	}
	for proxy, url := range map[string]string{"Caddy": startCaddy(t, dsn, inCaddy...).url, "Traefik": startTraefik(t, inTraefik).url} {
		for _, w := range wired {
			for i, asked := range w.asked {
				a := harness.Ask(t, harness.Get(url+"/"+w.name+asked.path, asked.headers...))
				got := fmt.Sprint(a.Status, " ", a.Header.Get("X-RateLimit-Limit"), " ", a.Header.Get("X-RateLimit-Remaining"))
				if a.Status == http.StatusTooManyRequests && a.Header.Get("Content-Type") != "application/json" {
					got += " " + a.Header.Get("Content-Type")
				}
				if got != asked.want {
					t.Errorf("%s, %s, request %d: %s, want %s", proxy, w.name, i, got, asked.want)
				}
			}
		}
	}
}

// TestExemptRequestsAreNotCounted in both proxies. The upstream never gets the header with the secret, and a wrong secret
// is no exemption. The rules of a policy apply to exempt requests.
func TestExemptRequestsAreNotCounted(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `SELECT rate_limit_rule('all', count_by => '{all}', algorithm => 'fixed_window', per_hour => 100);`)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Internal") != "" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(upstream.Close)
	const secret = "correct horse battery staple"
	for proxy, url := range bothProxies(t, dsn, upstream.URL, "exempt_header X-Internal {env.INTERNAL_SECRET}\npolicy\nzone caddy {\n\tlimit 2 1h\n}",
		object{"exemptHeader": "X-Internal {env.INTERNAL_SECRET}", "policy": object{"tier": "anonymous"}, "zones": []object{{"prefix": "traefik", "limit": "2 1h"}}}, "INTERNAL_SECRET="+secret) {
		if got := answersTo(t, 3, url, "X-Internal", secret); got != "200 200 200" {
			t.Errorf("%s answers exempt requests %s", proxy, got)
		}
		if got := quotaLeft(t, url, "X-Internal", secret); got[:4] != "100 " {
			t.Errorf("%s: the headers of an exempt request say %s", proxy, got)
		}
		if got := answersTo(t, 3, url, "X-Internal", "wrong"); got != "200 200 429" {
			t.Errorf("%s answers requests with a wrong secret %s", proxy, got)
		}
	}
	for proxy, url := range bothProxies(t, dsn, upstream.URL, "exempt 127.0.0.0/8\nprefix caddy-address\nlimit 1 1h", object{"exempt": "127.0.0.0/8", "prefix": "traefik-address", "limit": "1 1h"}) {
		if got := answersTo(t, 3, url); got != "200 200 200" {
			t.Errorf("%s: exempt addresses are answered %s", proxy, got)
		}
	}
}
