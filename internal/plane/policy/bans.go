package policy

import (
	"math"
	"net/netip"
	"time"
)

// noEnd stands for a missing end, in microseconds since the Unix epoch.
const noEnd = math.MaxInt64

// endOf returns end, or noEnd if end is 0.
func endOf(end int64) int64 {
	if end == 0 {
		return noEnd
	}
	return end
}

// banSet holds compiled bans: for each network, user and API key the ban that ends last.
type banSet struct {
	byNetwork     map[netip.Prefix]*Ban
	prefixLengths []int // the distinct lengths in byNetwork
	inForce       int64 // the number of all bans in force
	bySender      map[Credential]*Ban
}

func newBanSet(bans []Ban, inForce int64) *banSet {
	b := &banSet{
		byNetwork: map[netip.Prefix]*Ban{}, bySender: map[Credential]*Ban{}, inForce: inForce,
	}
	for i := range bans {
		ban := &bans[i]
		if ban.Network.IsValid() {
			network := normalNetwork(ban.Network)
			b.prefixLengths = addLength(b.prefixLengths, network)
			b.byNetwork[network] = lastBan(b.byNetwork[network], ban)
			continue
		}
		credential := credentialOf(&Identity{Digest: ban.Digest, User: ban.User})
		b.bySender[credential] = lastBan(b.bySender[credential], ban)
	}
	return b
}

// lastBan returns the one of two bans that ends later. A ban may be nil.
func lastBan(a, b *Ban) *Ban {
	if a == nil || b != nil && endOf(b.Until) > endOf(a.Until) {
		return b
	}
	return a
}

// networkBan returns the ban of the client's network, or nil. If several bans apply to the client's address,
// it returns the ban that ends last. An unknown address is never banned.
func networkBan(b *banSet, f *Facts) *Ban {
	var last *Ban
	for _, network := range networksOf(f.Address, b.prefixLengths) {
		last = lastBan(last, b.byNetwork[network])
	}
	return last
}

// networksOf returns the networks of some lengths that an address is in. For an address of NAT64, they are
// also those of the IPv4 address in it.
func networksOf(address netip.Addr, lengths []int) []netip.Prefix {
	networks := make([]netip.Prefix, 0, len(lengths))
	for _, bits := range lengths {
		if bits <= address.BitLen() {
			network, _ := address.Prefix(bits)
			networks = append(networks, network)
		}
	}
	if client := ClientOf(address); client != address {
		networks = append(networks, networksOf(client, lengths)...)
	}
	return networks
}

// refuseBanned reports whether one of two bans is in force at the time at. If so, it writes the refusal into
// v. A ban may be nil.
func refuseBanned(ofNetwork, ofSender *Ban, at int64, v *Verdict) bool {
	for _, ban := range []*Ban{ofNetwork, ofSender} {
		if ban == nil || at >= endOf(ban.Until) {
			continue
		}
		v.Ban = ban
		v.Reason = Banned
		v.Status = 403
		if ban.Until != 0 {
			v.RetryAfter = time.Duration(ban.Until-at) * time.Microsecond
		}
		if v.User == "" { // the sender was not looked up
			v.User = ban.User
			v.KeyID = ban.KeyID
		}
		return true
	}
	return false
}

// addLength adds the prefix length of a network to a list without duplicates. A search for an address does
// one look-up for each length, which is cheap, because even many networks have few distinct lengths.
func addLength(lengths []int, network netip.Prefix) []int {
	for _, bits := range lengths {
		if bits == network.Bits() {
			return lengths
		}
	}
	return append(lengths, network.Bits())
}

// normalNetwork returns a network with its host bits set to 0. A network of IPv4 addresses in IPv6 form
// becomes IPv4.
func normalNetwork(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// maxBans bounds the bans in memory. newestBansSQL has the same number.
const maxBans = 100000
