package policy

import (
	"net/netip"
	"sort"
)

// networks finds the smallest of many networks that contains an address. Different networks are
// nodes, in the order of their addresses, so each comes after those around it.
type networks struct {
	nodes   []netip.Prefix
	starts  []netip.Addr // by node: the first address
	parents []int32      // by node: the smallest network around it, or -1
}

// normalNetwork is a network without bits beyond its length, and as IPv4 if it is of IPv4
// addresses in IPv6 form.
func normalNetwork(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

func newNetworks(all []netip.Prefix) *networks {
	n := &networks{}
	known := make(map[netip.Prefix]bool, len(all))
	nodes := make([]netip.Prefix, 0, len(all))
	for i := range all {
		if p := normalNetwork(all[i]); !known[p] {
			known[p] = true
			nodes = append(nodes, p)
		}
	}
	sort.Slice(nodes, func(i, j int) bool {
		if order := nodes[i].Addr().Compare(nodes[j].Addr()); order != 0 {
			return order < 0
		}
		return nodes[i].Bits() < nodes[j].Bits()
	})
	n.nodes = nodes
	for i := range nodes {
		start := nodes[i].Addr()
		n.starts = append(n.starts, start)
		n.parents = append(n.parents, around(n, int32(i-1), start))
	}
	return n
}

// findNetwork is the node of the smallest network that contains an address, or -1. The networks
// around it are its parents.
func findNetwork(n *networks, a netip.Addr) int32 {
	if !a.IsValid() || len(n.starts) == 0 {
		return -1
	}
	a = a.Unmap().WithZone("")
	starts := n.starts
	from := 0
	to := len(starts)
	for from < to {
		middle := (from + to) / 2
		if starts[middle].Compare(a) <= 0 {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return around(n, int32(from-1), a)
}

// around returns the smallest network that contains an address, of a node and those around it. The
// node is the last one that does not begin after the address. Of two networks one contains the
// other, or they have no address in common: so no other node contains the address.
func around(n *networks, node int32, a netip.Addr) int32 {
	for node >= 0 && !n.nodes[node].Contains(a) {
		node = n.parents[node]
	}
	return node
}

// nodeOf is the node of a network that newNetworks was given.
func nodeOf(n *networks, p netip.Prefix) int32 {
	p = normalNetwork(p)
	node := findNetwork(n, p.Addr())
	for n.nodes[node] != p {
		node = n.parents[node]
	}
	return node
}
