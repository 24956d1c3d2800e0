package reports

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// checkSeen checks the values of response headers after the last request, as in "Name: value" lines. A value
// of - is a missing header, and + any value.
func (v *visit) checkSeen(lines string) {
	v.Helper()
	h := v.got[len(v.got)-1].Header
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
		check.Equal(v, name, got, want)
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
		rows: 21, seen: "Access-Control-Allow-Origin: https://app.test\nX-RateLimit-Limit: 10\n" +
			"Access-Control-Expose-Headers: Retry-After, X-RateLimit-Limit\nRetry-After: +",
	}}},
	{"R25", "mholt/caddy-ratelimit#4", slices.Concat(
		twoLaws("windows", "limit 5 5s", "limit 50 1h"),
		twoLaws("algorithms", "limit 5 1h\nalgorithm fixed_window", "limit 5 1h"),
		twoLaws("gcra", "limit 5 1h\nalgorithm gcra", "limit 1000 1h\nalgorithm gcra"))},
	{"R27", "mholt/caddy-ratelimit#10, #70", inEachOrder("key {client_ip} {host}\nlimit 2 1h",
		"limit 5 1h", "key {host}\nlimit 8 1h")},
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
			check: func(v *visit) {
				want := `prefix: "` + prefix + `": must be another name`
				if !strings.Contains(unquote(v.proxy.Log()), want) {
					v.Errorf("the log lacks %s", want)
				}
			}},
	}
}

// inEachOrder returns a site for each order of three zones, of which the first refuses after two requests.
// Then all counters stand at two.
func inEachOrder(a, b, c string) (sites []site) {
	for _, order := range [][]string{{a, b, c}, {a, c, b}, {b, a, c}, {b, c, a}, {c, a, b}, {c, b, a}} {
		var zones []string
		for _, zone := range order {
			zones = append(zones, zone+"\nalgorithm fixed_window")
		}
		sites = append(sites, site{zones: zones, asks: []ask{{n: 10}}, want: "200×2 429×8",
			check: func(v *visit) {
				check.Equal(v, "the counters", cluster.Texts(v, v.dsn, `SELECT count::text
					FROM rate_limit_ephemeral WHERE prefix ~ $1`, "^"+v.id+"($|-)"), "[2 2 2]")
			}})
	}
	return sites
}
