package traefikplugin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func bits(n int) *int { return &n }

// The expected addresses come from package pkg/ip of Traefik v3.6 for the same configuration and request.
// Where it returns none, the expected address is that of the connection.
func TestClientAddress(t *testing.T) {
	excluded := []string{"10.0.0.0/8", "2001:db8:1::/48", "192.0.2.1"}
	for _, c := range []struct {
		name      string
		strategy  *IPStrategy
		remote    string
		forwarded string
		want      string
	}{
		{"connection", nil, "192.0.2.7:80", "203.0.113.1", "192.0.2.7"},
		{"empty strategy", &IPStrategy{}, "192.0.2.7:80", "203.0.113.1", "192.0.2.7"},
		{"connection, IPv6", nil, "[2001:db8::1]:80", "", "2001:db8::1"},
		{"no port", nil, "@", "", "@"},
		{"depth 1", &IPStrategy{Depth: 1}, "192.0.2.7:80", "203.0.113.1, 203.0.113.2", "203.0.113.2"},
		{"depth 2", &IPStrategy{Depth: 2}, "192.0.2.7:80", "203.0.113.1, 203.0.113.2", "203.0.113.1"},
		{"depth too deep", &IPStrategy{Depth: 3}, "192.0.2.7:80", "203.0.113.1, 203.0.113.2", "192.0.2.7"},
		{"depth without a header", &IPStrategy{Depth: 1}, "192.0.2.7:80", "", "192.0.2.7"},
		{"depth before excluded", &IPStrategy{Depth: 1, ExcludedIPs: excluded}, "192.0.2.7:80",
			"203.0.113.1,10.0.0.1", "10.0.0.1"},
		{"excluded", &IPStrategy{ExcludedIPs: excluded}, "192.0.2.7:80",
			"203.0.113.9, 203.0.113.1, 192.0.2.1, 10.1.2.3, 2001:db8:1::5", "203.0.113.1"},
		{"excluded, 4 in 6", &IPStrategy{ExcludedIPs: excluded}, "192.0.2.7:80",
			"203.0.113.1, ::ffff:10.1.2.3", "203.0.113.1"},
		{"excluded, empty parts", &IPStrategy{ExcludedIPs: excluded}, "192.0.2.7:80",
			"203.0.113.1, , 10.0.0.1,", "203.0.113.1"},
		{"excluded, not an address", &IPStrategy{ExcludedIPs: excluded}, "192.0.2.7:80",
			"203.0.113.1, nonsense", "192.0.2.7"},
		{"excluded, all", &IPStrategy{ExcludedIPs: excluded}, "192.0.2.7:80", "10.0.0.1", "192.0.2.7"},
		// HAProxy adds its line after those of the client.
		{"depth, a line of the client", &IPStrategy{Depth: 1}, "192.0.2.7:80",
			"198.51.100.1, 198.51.100.2\n203.0.113.1", "203.0.113.1"},
		{"excluded, a line of the client", &IPStrategy{ExcludedIPs: excluded}, "192.0.2.7:80",
			"198.51.100.1, 198.51.100.2\n203.0.113.1", "203.0.113.1"},
		{"excluded, no header", &IPStrategy{ExcludedIPs: excluded}, "192.0.2.7:80", "", "192.0.2.7"},
	} {
		a, err := newAddresses(c.strategy)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.remote
		if c.forwarded != "" {
			r.Header["X-Forwarded-For"] = strings.Split(c.forwarded, "\n")
		}
		// With a strategy, the address of the connection may be that of a balancer.
		assumes := !a.plain && c.want == "192.0.2.7"
		if got, assumed := a.client(r); got != c.want || assumed != assumes {
			t.Errorf("%s: %q, assumed %v; want %q, %v", c.name, got, assumed, c.want, assumes)
		}
	}
}

func TestIPStrategyErrorsNameTheirField(t *testing.T) {
	for field, s := range map[string]*IPStrategy{
		`ipStrategy.depth: "-1"`:               {Depth: -1},
		`ipStrategy.excludedIPs: "10.0.0"`:     {ExcludedIPs: []string{"10.0.0.1", "10.0.0"}},
		`ipStrategy.excludedIPs: ""`:           {ExcludedIPs: []string{""}},
		`ipStrategy.ipv6Subnet: "0"`:           {IPv6Subnet: bits(0)},
		`ipStrategy.ipv6Subnet: "129"`:         {IPv6Subnet: bits(129)},
		`ipStrategy.ipv6Subnet: "-64"`:         {Depth: 1, IPv6Subnet: bits(-64)},
		`ipStrategy.excludedIPs: "1.2.3.4/33"`: {ExcludedIPs: []string{"1.2.3.4/33"}},
	} {
		if _, err := newAddresses(s); err == nil ||
			!strings.HasPrefix(err.Error(), strings.TrimSuffix(field, `""`)) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
