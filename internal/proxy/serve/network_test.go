package serve_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// A client that owns an IPv6 network is one client, and each form of an address is the
// same client.
func TestNetworkOfAnAddress(t *testing.T) {
	for _, test := range []struct {
		v4, v6     string // "" is the default
		text, want string
	}{
		{"", "", "192.0.2.7", "192.0.2.7"},
		{"", "", "::ffff:192.0.2.7", "192.0.2.7"},
		{"", "", "::FFFF:c000:207", "192.0.2.7"},
		{"", "", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"", "", "2001:DB8:1:2::1", "2001:db8:1:2::/64"},
		{"", "", "fe80::1%eth0", "fe80::/64"},
		{"", "128", "2001:DB8:0:0::1", "2001:db8::1"},
		{"", "56", "2001:db8:1:2ff::1", "2001:db8:1:200::/56"},
		{"24", "", "192.0.2.7", "192.0.2.0/24"},
		{"24", "", "::ffff:192.0.2.7", "192.0.2.0/24"},
		{"", "", "2001:db8:1:2::/64", "2001:db8:1:2::/64"},
		{"24", "48", "Ann: 7", "Ann: 7"},
		{"", "", "", ""},
	} {
		l, err := settings.ReadLimit(settings.Values{"prefix": "a", "limit": "5 1m", "ipv4_prefix": test.v4,
			"ipv6_prefix": test.v6})
		if err != nil {
			t.Fatal(err)
		}
		if got := serve.Network(test.text, l.IPv4, l.IPv6); got != test.want {
			t.Errorf("%s, %s and %s bits: %q, want %q", test.text, test.v4, test.v6, got, test.want)
		}
	}
	for _, wrong := range [][2]string{{"-1", ""}, {"0", ""}, {"33", ""}, {"", "-1"}, {"", "129"}} {
		if _, err := settings.ReadLimit(settings.Values{"prefix": "a", "limit": "5 1m",
			"ipv4_prefix": wrong[0], "ipv6_prefix": wrong[1]}); err == nil {
			t.Errorf("%v is accepted, want an error", wrong)
		}
	}
}
