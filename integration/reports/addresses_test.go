package reports

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// withKey is a policy that finds the API key in a header.
const withKey = "api_key {header.X-Api-Key}"

// orAnonymous is like withKey, and lets requests without a key pass.
const orAnonymous = withKey + "\nwithout_key anonymous"

// byAddress is a zone that counts three requests an hour by the client's address.
const byAddress = "limit 3 1h"

// from is a request of an address.
func from(address, want string) ask {
	return ask{n: 1, headers: "X-Forwarded-For: " + address, want: want}
}

var addresses = []report{
	{"F40", "PROXY protocol, 2.1 and 2.2", []site{
		{open: true, proxied: ownNetwork, zones: []string{byAddress}, check: viaProxy},
		{open: true, proxied: otherNetwork, zones: []string{byAddress}, check: viaNobody},
	}},
	{"R21", "near R17", []site{{
		policy: orAnonymous,
		sql: `INSERT INTO rate_limit_bans (network) VALUES ('2001:db8:21::1'), ('2001:db8:21:1::/64')
			ON CONFLICT DO NOTHING;`,
		asks: []ask{from("2001:db8:21::1", "403×1"), from("2001:db8:21::2", "200×1"),
			from("2001:db8:21:1::7", "403×1")},
		check: func(v *visit) {
			if out := v.command("ban", "2001:db8:21:2::1"); !strings.Contains(out, "2^64") {
				v.Errorf("ban says %q, want that it bans one of 2^64", out)
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
func (v *visit) announced(network, header string, n int) string {
	v.Helper()
	c := dial(v, v.proxied[network], hostOf(v.id))
	if _, err := io.WriteString(c.conn, header); err != nil {
		v.Fatal(err)
	}
	return c.askOften("GET /", "", n)
}

// tcp4 returns the PROXY header of a client.
func tcp4(address string) string { return "PROXY TCP4 " + address + " 127.0.0.1 4711 80\r\n" }

// viaProxy checks that health checks of a trusted proxy, which name no client, count together as its own
// address, and each client that it names for itself.
func viaProxy(v *visit) {
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
		if got := v.announced(ownNetwork, c.header, c.n); got != c.want {
			v.Errorf("%q: %s, want %s", c.header, got, c.want)
		}
	}
	v.checkKeys("127.0.0.1 203.0.113.10 203.0.113.9")
}

// viaNobody checks that nobody else can choose an address with a PROXY header.
func viaNobody(v *visit) {
	for i := range 5 {
		want := "200×1"
		if i >= 3 {
			want = "429×1"
		}
		header := tcp4(fmt.Sprint("203.0.113.", i))
		if got := v.announced(otherNetwork, header, 1); got != want {
			v.Errorf("%q: %s, want %s", header, got, want)
		}
	}
	v.checkKeys("127.0.0.1")
}

// checkKeys checks the keys of the counters of a site.
func (v *visit) checkKeys(want string) {
	v.Helper()
	if got := strings.Join(cluster.Texts(v, v.dsn, "SELECT key FROM rate_limit_ephemeral WHERE prefix = $1 "+
		`ORDER BY key COLLATE "C"`, v.id), " "); got != want {
		v.Errorf("the keys are %s, want %s", got, want)
	}
}
