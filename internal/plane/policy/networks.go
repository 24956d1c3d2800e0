package policy

import (
	"net/netip"
	"sort"
)

// networkLengths are the lengths that the networks of a map have, of IPv4 and of IPv6, the longest first. An address is
// looked up once for each length: few lengths are in use, however many networks there are.
type networkLengths struct{ four, six []int }

// add adds the length of a network that normalNetwork has returned.
func (l *networkLengths) add(p netip.Prefix) {
	lengths := &l.six
	if p.Addr().Is4() {
		lengths = &l.four
	}
	for _, bits := range *lengths {
		if bits == p.Bits() {
			return
		}
	}
	all := append(*lengths, p.Bits())
	sort.Slice(all, func(i, j int) bool { return all[i] > all[j] })
	*lengths = all
}

// none reports whether there is no network.
func (l *networkLengths) none() bool { return len(l.four)+len(l.six) == 0 }

// lengthsFor are the lengths that a network of an address may have. The address is a result of plainAddress.
func lengthsFor(l *networkLengths, a netip.Addr) []int {
	switch {
	case a.Is4():
		return l.four
	case a.IsValid():
		return l.six
	}
	return nil
}

// plainAddress is an address as networks are compared with it: IPv4 in IPv6 form is IPv4, and there is no zone.
func plainAddress(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// normalNetwork is a network without bits beyond its length, and as IPv4 if it is of IPv4
// addresses in IPv6 form.
func normalNetwork(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}
