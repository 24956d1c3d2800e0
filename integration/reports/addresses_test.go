package reports

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// byAddress is a zone that counts three requests an hour by the client's address.
const byAddress = "limit 3 1h"

// from are n requests of an address.
func from(address string, n int, want string) ask {
	return ask{n: n, headers: "X-Forwarded-For: " + address, want: want}
}

// countedBy is a site with the rule of the recipe "Logins", which counts by something in a number of rows.
func countedBy(what, want string, rows int) site {
	return site{policy: orAnonymous, sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}',
			paths => '{/login}', methods => '{POST}',
			count_by => '{` + what + `}', algorithm => 'sliding_log', per_hour => 5);`,
		asks: []ask{
			{n: 50, line: "POST /login", headers: "X-Forwarded-For: 2001:db8::#", want: want},
			{line: "POST /login", headers: "X-Forwarded-For: 2001:db8:0:1::1", want: "200×1"},
		}, rows: rows}
}

var addresses = []report{
	{"R17", "traefik/traefik#9721; mholt/caddy-ratelimit#23; lidofinance/lido-keys-api#372", []site{
		countedBy("ip", "200×5 429×45", 2), countedBy("user|ip", "200×5 429×45", 2),
		countedBy("key|ip", "200×5 429×45", 2), countedBy("ip/128", "200×50", 51),
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
	{"F40", "PROXY protocol, 2.1 and 2.2", []site{
		{open: true, proxied: ownNetwork, zones: []string{byAddress}, check: viaProxy},
		{open: true, proxied: otherNetwork, zones: []string{byAddress}, check: viaNobody},
	}},
	{"R21", "near R17", []site{{
		policy: orAnonymous,
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

// Networks from which a proxy takes PROXY headers: the test's own, and another one.
const (
	ownNetwork   = "127.0.0.0/8"
	otherNetwork = "192.0.2.0/24"
)

// listenForProxies finds an address for each of the networks.
func (p *proxy) listenForProxies(t *testing.T) {
	p.proxied = map[string]string{}
	for _, network := range []string{ownNetwork, otherNetwork} {
		p.proxied[network] = harness.FreeAddress(t)
	}
}

// pointOf returns the name of Traefik's entry point for PROXY headers of a network.
func pointOf(network string) string { return "proxied-" + network[:3] }

// announced sends n requests over a connection that begins with a PROXY header, and returns their statuses.
func (p *proxy) announced(t *testing.T, network, id, header string, n int) string {
	t.Helper()
	c := dial(t, p.proxied[network], hostOf(id))
	if _, err := io.WriteString(c.conn, header); err != nil {
		t.Fatal(err)
	}
	counts := map[int]int{}
	for range n {
		counts[c.ask(t, "GET /", "").Status]++
	}
	return countText(counts)
}

// tcp4 returns the PROXY header of a client.
func tcp4(address string) string { return "PROXY TCP4 " + address + " 127.0.0.1 4711 80\r\n" }

// viaProxy checks that health checks of a trusted proxy, which name no client, count together as its own
// address, and each client that it names for itself.
func viaProxy(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	const local = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00" // version 2
	for _, c := range []struct {
		header string
		n      int
		want   string
	}{
		{"PROXY UNKNOWN\r\n", 20, "200×3 429×17"}, {tcp4("203.0.113.9"), 4, "200×3 429×1"},
		{tcp4("203.0.113.10"), 4, "200×3 429×1"}, {tcp4("203.0.113.9"), 2, "429×2"},
		{"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", 2, "429×2"}, {local, 2, "429×2"},
		{"", 2, "429×2"},
	} {
		if got := p.announced(t, ownNetwork, id, c.header, c.n); got != c.want {
			t.Errorf("%s, %q: %s, want %s", id, c.header, got, c.want)
		}
	}
	checkKeys(t, p, id, "127.0.0.1 203.0.113.10 203.0.113.9")
}

// viaNobody checks that nobody else can choose an address with a PROXY header.
func viaNobody(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	for i := range 5 {
		want := "200×1"
		if i >= 3 {
			want = "429×1"
		}
		header := tcp4(fmt.Sprint("203.0.113.", i))
		if got := p.announced(t, otherNetwork, id, header, 1); got != want {
			t.Errorf("%s, %q: %s, want %s", id, header, got, want)
		}
	}
	checkKeys(t, p, id, "127.0.0.1")
}

// checkKeys checks the keys of the counters of a site.
func checkKeys(t *testing.T, p *proxy, id, want string) {
	t.Helper()
	if got := strings.Join(cluster.Texts(t, p.dsn, "SELECT key FROM rate_limit_ephemeral WHERE prefix = $1 "+
		`ORDER BY key COLLATE "C"`, id), " "); got != want {
		t.Errorf("%s: the keys are %s, want %s", id, got, want)
	}
}
