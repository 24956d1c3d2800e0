package traefikplugin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// pointer returns a pointer to n.
func pointer(n int) *int { return &n }

// The client's address is the same as package pkg/ip of Traefik v3.6 returns for the same configuration and
// request. If that package returns none, it is the address of the connection.
func TestClientAddressIsThatOfTraefik(t *testing.T) {
	const two = "203.0.113.1, 203.0.113.2"
	networks := []string{"10.0.0.0/8", "2001:db8:1::/48", "192.0.2.1"}
	excluded, last := &IPStrategy{ExcludedIPs: networks}, &IPStrategy{Depth: 1}
	for _, c := range []struct {
		name      string
		strategy  *IPStrategy
		remote    string // "" is 192.0.2.7:80
		forwarded string
		want      string
	}{
		{name: "connection", forwarded: "203.0.113.1", want: "192.0.2.7"},
		{name: "empty strategy", strategy: &IPStrategy{}, forwarded: "203.0.113.1", want: "192.0.2.7"},
		{name: "connection, IPv6", remote: "[2001:db8::1]:80", want: "2001:db8::1"},
		{name: "no port", remote: "@", want: "unknown"},
		{name: "depth 1", strategy: last, forwarded: two, want: "203.0.113.2"},
		{name: "depth 2", strategy: &IPStrategy{Depth: 2}, forwarded: two, want: "203.0.113.1"},
		{name: "depth too deep", strategy: &IPStrategy{Depth: 3},
			forwarded: two, want: "192.0.2.7"},
		{name: "depth without a header", strategy: last, want: "192.0.2.7"},
		{name: "depth before excluded", strategy: &IPStrategy{Depth: 1, ExcludedIPs: networks},
			forwarded: "203.0.113.1,10.0.0.1", want: "10.0.0.1"},
		{name: "excluded", strategy: excluded,
			forwarded: "203.0.113.9, 203.0.113.1, 192.0.2.1, 10.1.2.3, 2001:db8:1::5",
			want:      "203.0.113.1"},
		{name: "excluded, 4 in 6", strategy: excluded,
			forwarded: "203.0.113.1, ::ffff:10.1.2.3", want: "203.0.113.1"},
		{name: "zone", strategy: last, forwarded: "fe80::1%zone", want: "fe80::1"},
		{name: "excluded, empty parts", strategy: excluded,
			forwarded: "203.0.113.1, , 10.0.0.1,", want: "203.0.113.1"},
		{name: "excluded, not an address", strategy: excluded,
			forwarded: "203.0.113.1, nonsense", want: "192.0.2.7"},
		{name: "excluded, all", strategy: excluded, forwarded: "10.0.0.1", want: "192.0.2.7"},
		// HAProxy adds its line after the client's lines.
		{name: "depth, a line of the client", strategy: last,
			forwarded: "198.51.100.1, 198.51.100.2\n203.0.113.1",
			want:      "203.0.113.1"},
		{name: "excluded, a line of the client", strategy: excluded,
			forwarded: "198.51.100.1, 198.51.100.2\n203.0.113.1",
			want:      "203.0.113.1"},
		{name: "excluded, no header", strategy: excluded, want: "192.0.2.7"},
	} {
		a, err := newAddresses(c.strategy)
		if err != nil {
			t.Fatalf("%s: error %v, want nil", c.name, err)
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if r.RemoteAddr = c.remote; c.remote == "" {
			r.RemoteAddr = "192.0.2.7:80"
		}
		if c.forwarded != "" {
			r.Header["X-Forwarded-For"] = strings.Split(c.forwarded, "\n")
		}
		// With a strategy, the address of the connection may be a load balancer's.
		assumes := !a.plain && c.want == "192.0.2.7"
		if got, assumed := a.client(r); got != c.want || assumed != assumes {
			t.Errorf("%s: client() = %q, %v; want %q, %v", c.name, got, assumed, c.want, assumes)
		}
	}
}

// An invalid ipStrategy is an error that names the field and its value.
func TestIPStrategyErrorsNameTheirField(t *testing.T) {
	for field, s := range map[string]*IPStrategy{
		`ipStrategy.depth: "-1"`:               {Depth: -1},
		`ipStrategy.excludedIPs: "10.0.0"`:     {ExcludedIPs: []string{"10.0.0.1", "10.0.0"}},
		`ipStrategy.excludedIPs: `:             {ExcludedIPs: []string{""}},
		`ipStrategy.ipv6Subnet: "0"`:           {IPv6Subnet: pointer(0)},
		`ipStrategy.ipv6Subnet: "129"`:         {IPv6Subnet: pointer(129)},
		`ipStrategy.ipv6Subnet: "-64"`:         {Depth: 1, IPv6Subnet: pointer(-64)},
		`ipStrategy.excludedIPs: "1.2.3.4/33"`: {ExcludedIPs: []string{"1.2.3.4/33"}},
	} {
		_, err := newAddresses(s)
		if !strings.HasPrefix(fmt.Sprint(err), field) {
			t.Errorf("newAddresses(%+v): error %v, want one about %s", s, err, field)
		}
	}
}
