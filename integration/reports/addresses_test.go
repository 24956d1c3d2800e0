package reports

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// byAddress is a zone that counts three requests an hour by the client's address.
const byAddress = "limit 3 1h"

// from are n requests of an address.
func from(address string, n int, want string) ask {
	return ask{n: n, headers: "X-Forwarded-For: " + address, want: want}
}

// countedBy is a site with the rule of the recipe "Logins", which counts by something.
func countedBy(what, want string) site {
	return site{policy: withKey, sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', paths => '{/login}',
			methods => '{POST}', count_by => '{` + what + `}', algorithm => 'sliding_log', per_hour => 5);`,
		asks: []ask{
			{n: 50, line: "POST /login", headers: "X-Forwarded-For: 2001:db8::#", want: want},
			{line: "POST /login", headers: "X-Forwarded-For: 2001:db8:0:1::1", want: "200×1"},
		}}
}

var addresses = []report{
	{"R17", "traefik/traefik#9721; mholt/caddy-ratelimit#23; lidofinance/lido-keys-api#372", []site{
		countedBy("ip", "200×5 429×45"), countedBy("user|ip", "200×5 429×45"),
		countedBy("key|ip", "200×5 429×45"), countedBy("ip/128", "200×50"),
	}},
	{"R19", "traefik/traefik#7067; mholt/caddy-ratelimit#19", []site{
		{open: true, zones: []string{byAddress}, asks: []ask{{n: 20,
			headers: "X-Forwarded-For: 203.0.113.#\nX-Real-Ip: 203.0.113.#\nForwarded: for=203.0.113.#"}},
			want: "200×3 429×17"},
		{zones: []string{byAddress}, asks: []ask{from("198.51.100.#, 203.0.113.1", 5, "200×3 429×2"),
			from("198.51.100.#, 192.0.2.#, 203.0.113.2", 5, "200×3 429×2")}},
	}},
	{"R20", "RFC 7239, 6; RFC 4291, 2.5.5.2", []site{{
		zones: []string{byAddress},
		asks: []ask{from("203.0.113.9", 2, ""), from("203.0.113.9:4711", 2, ""),
			from("::ffff:203.0.113.9", 2, "")}, want: "200×3 429×3", rows: 1,
	}, {
		zones: []string{byAddress},
		asks: []ask{from("unknown", 1, ""), from("_hidden", 1, ""), from(`"203.0.113.9"`, 1, ""),
			from("", 1, "")}, want: "200×3 429×1", rows: 1,
	}}},
	{"R21", "near R17", []site{{
		policy: withKey,
		sql: `INSERT INTO rate_limit_bans (network) VALUES ('2001:db8:21::1'), ('2001:db8:21:1::/64')
			ON CONFLICT DO NOTHING;`,
		asks: []ask{from("2001:db8:21::1", 1, "403×1"), from("2001:db8:21::2", 1, "200×1"),
			from("2001:db8:21:1::7", 1, "403×1")},
		check: func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
			if out := p.command(t, "ban", "2001:db8:21:2::1"); !strings.Contains(out, "2^64") {
				t.Errorf("%s: ban says %q, want that it bans one of 2^64", id, out)
			}
		},
	}}},
}
