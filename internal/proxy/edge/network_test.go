package edge_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// A client that owns an IPv6 network is one client, and each form of an address is the
// same client.
func TestNetworkOfAnAddress(t *testing.T) {
	for _, test := range []struct {
		v4, v6     int // 0 is the default
		text, want string
	}{
		{0, 0, "192.0.2.7", "192.0.2.7"},
		{0, 0, "::ffff:192.0.2.7", "192.0.2.7"},
		{0, 0, "::FFFF:c000:207", "192.0.2.7"},
		{0, 0, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{0, 0, "2001:DB8:1:2::1", "2001:db8:1:2::/64"},
		{0, 0, "fe80::1%eth0", "fe80::/64"},
		{0, 128, "2001:DB8:0:0::1", "2001:db8::1"},
		{0, 56, "2001:db8:1:2ff::1", "2001:db8:1:200::/56"},
		{24, 0, "192.0.2.7", "192.0.2.0/24"},
		{24, 0, "::ffff:192.0.2.7", "192.0.2.0/24"},
		{0, 0, "2001:db8:1:2::/64", "2001:db8:1:2::/64"},
		{24, 48, "Ann: 7", "Ann: 7"},
		{0, 0, "", ""},
	} {
		v4, v6, err := edge.NetworkBits(test.v4, test.v6)
		if err != nil {
			t.Fatal(err)
		}
		if got := edge.Network(test.text, v4, v6); got != test.want {
			t.Errorf("%s, %d and %d bits: %q, want %q", test.text, test.v4, test.v6, got, test.want)
		}
	}
	for _, wrong := range [][2]int{{-1, 0}, {33, 0}, {0, -1}, {0, 129}} {
		if _, _, err := edge.NetworkBits(wrong[0], wrong[1]); err == nil {
			t.Errorf("%v is not refused", wrong)
		}
	}
}
