package serve_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// All addresses of an IPv6 network and all forms of an address are one client.
func TestNetworkIsOneClient(t *testing.T) {
	for _, test := range []struct {
		v4, v6     string // "" is the default
		text, want string
	}{
		{text: "192.0.2.7", want: "192.0.2.7"},
		{text: "::ffff:192.0.2.7", want: "192.0.2.7"},
		{text: "::FFFF:c000:207", want: "192.0.2.7"},
		{text: "2001:db8:1:2:3:4:5:6", want: "2001:db8:1:2::/64"},
		{text: "2001:DB8:1:2::1", want: "2001:db8:1:2::/64"},
		{text: "fe80::1%eth0", want: "fe80::/64"},
		{text: "64:ff9b::c000:207", want: "192.0.2.7"},
		{v4: "24", text: "64:FF9B::192.0.2.7", want: "192.0.2.0/24"},
		{text: "64:ff9b::a00:1", want: "64:ff9b::/64"}, // 10.0.0.1
		{v6: "128", text: "2001:DB8:0:0::1", want: "2001:db8::1"},
		{v6: "56", text: "2001:db8:1:2ff::1", want: "2001:db8:1:200::/56"},
		{v4: "24", text: "192.0.2.7", want: "192.0.2.0/24"},
		{v4: "24", text: "::ffff:192.0.2.7", want: "192.0.2.0/24"},
		{text: "2001:db8:1:2::/64", want: "2001:db8:1:2::/64"},
		{v4: "24", v6: "48", text: "Ann: 7", want: "Ann: 7"},
		{want: ""},
	} {
		l, err := settings.ReadLimit(settings.Values{"prefix": "a", "limit": "5 1m", "ipv4_prefix": test.v4,
			"ipv6_prefix": test.v6})
		if err != nil {
			t.Fatal(err)
		}
		if got := serve.Network(test.text, l.IPv4, l.IPv6); got != test.want {
			t.Errorf("Network(%q) with %q and %q bits = %q, want %q", test.text, test.v4, test.v6, got,
				test.want)
		}
	}
}
