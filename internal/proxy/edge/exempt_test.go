package edge_test

import (
	"net/netip"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func TestNetworksAreExempt(t *testing.T) {
	got, err := read(t, edge.HandlerTable, "exempt", "10.0.0.0/8 192.0.2.7 2001:db8::1/32 ::ffff:192.0.2.8")
	if err != nil {
		t.Fatal(err)
	}
	site := &edge.Site{Exempt: got.Exempt}
	for address, want := range map[string]bool{
		"10.1.2.3": true, "11.1.2.3": false, "192.0.2.7": true, "192.0.2.8": true, "192.0.2.9": false, "::ffff:10.1.2.3": true, "2001:db8:1::": true, "2001:db9::": false, "fe80::1%eth0": false,
	} {
		if site.IsExempt(netip.MustParseAddr(address)) != want {
			t.Errorf("%s: %v", address, !want)
		}
	}
	if site.IsExempt(netip.Addr{}) {
		t.Error("an unknown address is exempt")
	}
	for text, word := range map[string]string{"10.0.0.0/33": "10.0.0.0/33", "10.0.0.1 everybody": "everybody", "fe80::1%eth0": "fe80::1%eth0"} {
		_, err := read(t, edge.HandlerTable, "exempt", text)
		checkField(t, err, "exempt", word)
	}
}
