package policy

import (
	"encoding/binary"
	"net/netip"
	"sort"
)

// networks finds the smallest of many networks that contains an address. A network is a
// node, by its place in the list that newNetworks was given; networks of equal value are the
// first of them.
type networks struct {
	four, six ranges
	parents   []int32 // by node: the smallest network around it, or -1
	nodes     []int32 // by place: the node
	downwards []int32 // the nodes, each after those around it
}

// ranges divides all addresses into ranges with one smallest network each. Range i begins at
// starts[i] and ends before the next. An address is two numbers; an IPv4 address has only low.
type ranges struct {
	high, low []uint64
	nodes     []int32 // -1: in no network
}

// span is a network as its first and last address.
type span struct {
	high, low, endHigh, endLow uint64
	bits                       int
	node                       int32
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
	n := &networks{parents: make([]int32, len(all)), nodes: make([]int32, len(all))}
	first := make(map[netip.Prefix]int32, len(all))
	var four, six []span
	for i := range all {
		p := normalNetwork(all[i])
		_, known := first[p]
		if !known {
			first[p] = int32(i)
		}
		node := first[p]
		n.nodes[i] = node
		n.parents[i] = -1
		if known {
			continue
		}
		s := spanOf(p)
		s.node = node
		if p.Addr().Is4() {
			four = append(four, s)
		} else {
			six = append(six, s)
		}
	}
	n.four = n.divide(four)
	n.six = n.divide(six)
	return n
}

func spanOf(p netip.Prefix) span {
	var s span
	s.bits = p.Bits()
	s.high, s.low = numbersOf(p.Addr())
	free := uint(p.Addr().BitLen() - p.Bits())
	s.endHigh = s.high
	s.endLow = s.low
	if free >= 64 {
		s.endLow = ^uint64(0)
		s.endHigh |= uint64(1)<<(free-64) - 1
	} else {
		s.endLow |= uint64(1)<<free - 1
	}
	return s
}

// numbersOf are the bits of an address.
func numbersOf(a netip.Addr) (high, low uint64) {
	if a.Is4() {
		four := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(four[:]))
	}
	six := a.As16()
	return binary.BigEndian.Uint64(six[:8]), binary.BigEndian.Uint64(six[8:])
}

// divide turns sorted networks into ranges. Of two networks, one contains the other, or they
// have no address in common.
func (n *networks) divide(spans []span) ranges {
	sort.Slice(spans, func(i, j int) bool {
		a, b := &spans[i], &spans[j]
		if a.high != b.high {
			return a.high < b.high
		}
		if a.low != b.low {
			return a.low < b.low
		}
		return a.bits < b.bits
	})
	var r ranges
	var open []span // networks around the current address, the smallest last
	for i := range spans {
		s := spans[i]
		for len(open) > 0 && (open[len(open)-1].endHigh < s.high || open[len(open)-1].endHigh == s.high && open[len(open)-1].endLow < s.low) {
			open = r.end(open)
		}
		n.downwards = append(n.downwards, s.node)
		if len(open) > 0 {
			n.parents[s.node] = open[len(open)-1].node
		}
		r.begin(s.high, s.low, s.node)
		open = append(open, s)
	}
	for len(open) > 0 {
		open = r.end(open)
	}
	return r
}

// end closes the smallest open network.
func (r *ranges) end(open []span) []span {
	last := open[len(open)-1]
	open = open[:len(open)-1]
	node := int32(-1)
	if len(open) > 0 {
		node = open[len(open)-1].node
	}
	low := last.endLow + 1
	high := last.endHigh
	if low == 0 {
		high++
	}
	if low != 0 || high != 0 {
		r.begin(high, low, node)
	}
	return open
}

func (r *ranges) begin(high, low uint64, node int32) {
	if last := len(r.nodes) - 1; last >= 0 && r.high[last] == high && r.low[last] == low {
		r.nodes[last] = node
		return
	}
	r.high = append(r.high, high)
	r.low = append(r.low, low)
	r.nodes = append(r.nodes, node)
}

// findNetwork is the node of the smallest network that contains an address, or -1. The networks
// around it are its parents.
func findNetwork(n *networks, a netip.Addr) int32 {
	if !a.IsValid() {
		return -1
	}
	a = a.Unmap()
	r := &n.six
	if a.Is4() {
		r = &n.four
	}
	if len(r.nodes) == 0 {
		return -1
	}
	high, low := numbersOf(a)
	highs := r.high
	lows := r.low
	from := 0
	to := len(highs)
	for from < to {
		middle := (from + to) / 2
		if highs[middle] < high || highs[middle] == high && lows[middle] <= low {
			from = middle + 1
		} else {
			to = middle
		}
	}
	if from == 0 {
		return -1
	}
	return r.nodes[from-1]
}
