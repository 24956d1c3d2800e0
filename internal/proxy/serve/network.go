package serve

import (
	"net/netip"
	"strings"
)

const allIPv4 = 32

// MaybeAddress reports whether text may be an address that Network changes. It is much faster than Network.
func MaybeAddress(text string, v4 int) bool {
	return v4 < allIPv4 || strings.IndexByte(text, ':') >= 0
}

// Network returns the network of an address, such as "2001:db8::/64": the first v4 bits of an IPv4 address,
// or the first v6 bits of an IPv6 address. If all bits count, it returns the address without a length. It
// normalizes addresses: IPv6 in lower case and without a zone, and IPv4-mapped addresses as IPv4. Network
// returns other text unchanged.
func Network(text string, v4, v6 int) string {
	if !MaybeAddress(text, v4) {
		return text
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	address = address.Unmap().WithZone("")
	bits := v4
	if address.Is6() {
		bits = v6
	}
	if bits >= address.BitLen() {
		return address.String()
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return text
	}
	return prefix.String()
}
