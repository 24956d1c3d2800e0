package edge

import (
	"net/netip"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantExempt = "networks or addresses with spaces between them, such as 10.0.0.0/8 192.0.2.7"

// readExempt reads the networks of which requests are exempt from the limits of a configuration.
func readExempt(to *Settings, text string) error {
	for _, word := range strings.Fields(text) {
		network, err := netip.ParsePrefix(word)
		if err != nil {
			address, failure := netip.ParseAddr(word)
			if failure != nil || address.Zone() != "" {
				return &ratelimit.FieldError{Value: word, Want: wantExempt}
			}
			address = address.Unmap()
			network = netip.PrefixFrom(address, address.BitLen())
		}
		to.Exempt = append(to.Exempt, network.Masked())
	}
	return nil
}

// IsExempt reports whether an address is in a network of Site.Exempt. The zero Addr is in none.
func (s *Site) IsExempt(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	for i := range s.Exempt {
		if s.Exempt[i].Contains(address) {
			return true
		}
	}
	return false
}
