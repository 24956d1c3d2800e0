package reports

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// seen returns a check of the values of response headers after the last request, as in "Name: value" lines. A
// value of - is a missing header, and + any value.
func seen(lines string) func(t *testing.T, p *proxy, id string, got []*harness.Response) {
	return func(t *testing.T, p *proxy, id string, got []*harness.Response) {
		t.Helper()
		h := got[len(got)-1].Header
		for line := range strings.Lines(lines) {
			name, want, _ := strings.Cut(strings.TrimSpace(line), ": ")
			values := h[http.CanonicalHeaderKey(name)]
			got := strings.Join(values, " and ")
			switch {
			case len(values) == 0:
				got = "-"
			case want == "+" && len(values) == 1:
				got = "+"
			}
			if got != want {
				t.Errorf("%s: %s is %q, want %q", id, name, got, want)
			}
		}
	}
}

var keys = []report{
	{"R22", "agentgateway/agentgateway#926; GIScience/openrouteservice#164; hypothesis/h#5423", []site{{
		before: "header Access-Control-Allow-Origin https://app.test\n" +
			`header Access-Control-Expose-Headers "Retry-After, X-RateLimit-Limit"`,
		middlewares: object{"cors": object{"headers": object{"customResponseHeaders": object{
			"Access-Control-Allow-Origin":   "https://app.test",
			"Access-Control-Expose-Headers": "Retry-After, X-RateLimit-Limit"}}}},
		zones: []string{"key {header.X-Api-Key}\nalgorithm fixed_window\nlimit 10 1mo calendar"},
		asks: []ask{{n: 20, line: "OPTIONS /", want: "200×20", headers: "X-Forwarded-For: 203.0.113.#\n" +
			"Origin: https://app.test\nAccess-Control-Request-Method: GET"},
			{n: 11, headers: "Origin: https://app.test\nX-Api-Key: K", want: "200×10 429×1"}},
		rows: 21, check: seen("Access-Control-Allow-Origin: https://app.test\nX-RateLimit-Limit: 10\n" +
			"Access-Control-Expose-Headers: Retry-After, X-RateLimit-Limit\nRetry-After: +"),
	}}},
	{"R23", "kubernetes/ingress-nginx#1210; netlify/gotrue#447", slices.Concat(
		withoutKey("", "200×2 429×4"), withoutKey("\nwithout_key skip", "200×6"),
		withoutKey("\nwithout_key refuse", "401×6"))},
	{"R24", "Kong/kong#6837, #10672; traefik/traefik#10307", []site{{
		zones: []string{"key {header.X-User} | {client_ip}\nlimit 2 1h"},
		asks: []ask{from("203.0.113.1", 3, "200×2 429×1"), from("203.0.113.2", 3, "200×2 429×1"),
			{n: 3, headers: "X-Forwarded-For: 203.0.113.3\nX-User: 203.0.113.1", want: "200×2 429×1"}},
		rows: 3,
	}, {
		policy: orAnonymous, sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}',
			count_by => '{header:X-Tenant}', without_header => 'skip', per_hour => 2);`,
		asks: []ask{{n: 3, want: "200×3"}}, noRows: true,
	}}},
	{"R25", "mholt/caddy-ratelimit#4", slices.Concat(
		twoLaws("windows", "limit 5 5s", "limit 50 1h"),
		twoLaws("algorithms", "limit 5 1h\nalgorithm fixed_window", "limit 5 1h"),
		twoLaws("gcra", "limit 5 1h\nalgorithm gcra", "limit 1000 1h\nalgorithm gcra"))},
	{"R26", "traefik/traefik#13706; apache/apisix#7746, #10540", []site{
		// One prefix in two sites and in both proxies.
		{zones: []string{"prefix r26-shared\nkey all\nlimit 3 1h"}, asks: []ask{{n: 2}}},
		{only: "caddy", zones: []string{"prefix r26-shared\nkey all\nlimit 3 1h"},
			asks: []ask{{n: 2}}, want: "200×1 429×1"},
		{only: "traefik", zones: []string{"prefix r26-shared\nkey all\nlimit 3 1h"},
			asks: []ask{{n: 2}}, want: "429×2"},
		// Two prefixes.
		{zones: []string{"limit 3 1h"}, asks: []ask{{n: 4}}, want: "200×3 429×1"},
		{zones: []string{"limit 3 1h"}, asks: []ask{{n: 4}}, want: "200×3 429×1"},
		// One prefix with two amounts.
		{zones: []string{"prefix r26-two-PROXY\nlimit 3 1h"}, asks: []ask{{n: 4}}, want: "200×3 429×1"},
		{zones: []string{"prefix r26-two-PROXY\nlimit 5 1h"}, asks: []ask{{n: 4}}, want: "200×2 429×2"},
		// One prefix in two tables.
		{zones: []string{"prefix r26-durable-PROXY\nlimit 3 1h"}, asks: []ask{{n: 4}}, want: "200×3 429×1"},
		{zones: []string{"prefix r26-durable-PROXY\nlimit 3 1h\ndurable on"}, asks: []ask{{n: 4}},
			want: "200×3 429×1"},
	}},
	{"R27", "mholt/caddy-ratelimit#10, #70", inEachOrder("key {client_ip} {host}\nlimit 2 1h",
		"limit 5 1h", "key {host}\nlimit 8 1h")},
	{"R28", "mholt/caddy-ratelimit#77, #78", []site{
		{only: "caddy", handler: "match path /x", zones: []string{"limit 1 1h"}, refused: "match"},
		{only: "caddy", directive: "route /api/* {\npg_ratelimit ID {\nlimit 1 1h\n}\n}",
			asks: []ask{{line: "GET /api/x", want: "200×1"}, {line: "GET /api/x", want: "429×1"},
				{n: 3, line: "GET /other", want: "200×3"}}},
	}},
	// The Caddyfile that caddy-docker-proxy makes of the labels in docs/programs.md.
	{"R29", "lucaslorentz/caddy-docker-proxy#612; mholt/caddy-ratelimit#53", []site{
		{only: "caddy", directive: labels,
			asks: []ask{{n: 2, want: "200×2"}, {line: "GET /login", want: "200×1"}}},
		{only: "caddy", directive: labels, asks: []ask{{n: 2, want: "429×2"}}},
	}},
}

// withoutKey returns sites whose key is empty for a network: in Caddy by map, in Traefik by a header that its
// clients do not send. want are the statuses of its clients. Others keep their quotas.
func withoutKey(setting, want string) []site {
	asks := []ask{{n: 6, headers: "X-Forwarded-For: 198.51.100.#", want: want},
		{n: 3, headers: "X-Forwarded-For: 203.0.113.1\nX-Limit: 1", want: "200×2 429×1"}}
	const mapped = "map {client_ip} {limit.key} {\n" + `~^198\.51\.100\. ""` + "\ndefault {client_ip}\n}"
	return []site{
		{only: "caddy", before: mapped, zones: []string{"key {limit.key}\nlimit 2 1h" + setting}, asks: asks},
		{only: "traefik", zones: []string{"key {header.X-Limit}\nlimit 2 1h" + setting}, asks: asks},
	}
}

// twoLaws returns sites with two limits of one prefix, which cannot share rows. Caddy refuses them, and names
// both places. Traefik logs both, and keeps both.
func twoLaws(prefix, a, b string) []site {
	prefix = "r25-" + prefix
	const handler = "route %s {\npg_ratelimit %s {\n%s\n}\n}\n"
	return []site{
		{only: "caddy", refused: "limits on the same rows need the same algorithm",
			directive: fmt.Sprintf(handler, "/login", prefix, a) + fmt.Sprintf(handler, "/api/*", prefix, b)},
		{only: "traefik", zones: []string{"prefix " + prefix + "\n" + a}, asks: []ask{{want: "200×1"}}},
		{only: "traefik", zones: []string{"prefix " + prefix + "\n" + b}, asks: []ask{{}},
			check: func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
				want := `prefix: "` + prefix + `": must be another name`
				if !strings.Contains(unquote(p.Log()), want) {
					t.Errorf("%s: the log lacks %s", id, want)
				}
			}},
	}
}

// labels is the directive of R29.
const labels = `pg_ratelimit r29 {
	limit 3 1h
	zone r29-x {
		limit 1 1h
		match {
			path /login
		}
	}
}`

// inEachOrder returns a site for each order of three zones, of which the first refuses after two requests.
// Then all counters stand at two.
func inEachOrder(a, b, c string) (sites []site) {
	for _, order := range [][]string{{a, b, c}, {a, c, b}, {b, a, c}, {b, c, a}, {c, a, b}, {c, b, a}} {
		var zones []string
		for _, zone := range order {
			zones = append(zones, zone+"\nalgorithm fixed_window")
		}
		sites = append(sites, site{zones: zones, asks: []ask{{n: 10}}, want: "200×2 429×8",
			check: func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
				counts := cluster.Texts(t, p.dsn, `SELECT count::text FROM rate_limit_ephemeral
					WHERE prefix ~ $1`, "^"+id+"($|-)")
				if got := strings.Join(counts, " "); got != "2 2 2" {
					t.Errorf("%s: the counters are %s, want 2 2 2", id, got)
				}
			}})
	}
	return sites
}
