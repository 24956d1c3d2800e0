package integration

import (
	"fmt"
	"net/http"
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
