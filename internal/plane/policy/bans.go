package policy

import (
	"math"
	"net/netip"
	"time"
)

// never is the time of an end that never comes, in microseconds since the Unix epoch.
const never = math.MaxInt64

// always is the time before all others.
const always = math.MinInt64

// endOf returns an end in microseconds. The zero time means never.
func endOf(t time.Time) int64 {
	if t.IsZero() {
		return never
	}
	return t.UnixMicro()
}

// beginOf returns a beginning in microseconds. The zero time means always.
func beginOf(t time.Time) int64 {
	if t.IsZero() {
		return always
	}
	return t.UnixMicro()
}

// banSet holds compiled bans: for each network, user and API key the ban that ends last.
type banSet struct {
	byNetwork     map[netip.Prefix]*Ban
	prefixLengths []int // the distinct ones of byNetwork
	inForce       int64 // the number of bans in the database
	bySender      map[Credential]*Ban
}

func newBanSet(bans []Ban) *banSet {
	b := &banSet{byNetwork: make(map[netip.Prefix]*Ban), bySender: make(map[Credential]*Ban)}
	for i := range bans {
		ban := &bans[i]
		if ban.Network.IsValid() {
			network := normalNetwork(ban.Network)
			b.prefixLengths = addLength(b.prefixLengths, network)
			b.byNetwork[network] = lastBan(b.byNetwork[network], ban)
			continue
		}
		of := credentialOf(&Identity{Digest: ban.Digest, User: ban.User})
		b.bySender[of] = lastBan(b.bySender[of], ban)
	}
	return b
}

// lastBan returns the one of two bans that ends last. Either may be nil.
func lastBan(a, b *Ban) *Ban {
	if a == nil || b != nil && endOf(b.Until) > endOf(a.Until) {
		return b
	}
	return a
}

// networkBan returns, of the bans of networks with the client's address, the one that ends last, or nil.
func networkBan(b *banSet, f *Facts) *Ban {
	var last *Ban
	address := f.Address.Unmap()
	for _, bits := range b.prefixLengths {
		if bits <= address.BitLen() {
			network, _ := address.Prefix(bits)
			last = lastBan(last, b.byNetwork[network])
		}
	}
	return last
}

// senderBan returns, of the bans of an identity's API key and user, the one that ends last, or nil.
func senderBan(b *banSet, id *Identity) *Ban {
	return lastBan(b.bySender[Credential{Digest: id.Digest}], b.bySender[Credential{User: id.User}])
}

// refuseBanned refuses a request and returns true if one of two bans holds at now. Either may be nil.
func refuseBanned(ofNetwork, ofSender *Ban, now time.Time, o *Verdict) bool {
	for _, ban := range []*Ban{ofNetwork, ofSender} {
		if ban == nil || now.UnixMicro() >= endOf(ban.Until) {
			continue
		}
		o.Ban = ban
		o.Reason = Banned
		o.Status = 403
		if !ban.Until.IsZero() {
			o.RetryAfter = ban.Until.Sub(now)
		}
		if o.User == "" { // the sender was not looked up
			o.User = ban.User
			o.KeyID = ban.KeyID
		}
		return true
	}
	return false
}

// addLength adds the prefix length of a network to a list without duplicates. A search for an address takes
// one look-up in a map for each length. Even many networks have few lengths.
func addLength(lengths []int, network netip.Prefix) []int {
	for _, bits := range lengths {
		if bits == network.Bits() {
			return lengths
		}
	}
	return append(lengths, network.Bits())
}

// plainAddress returns an address for comparisons with networks: without a zone, and as IPv4 if it is an IPv4
// address in IPv6 form.
func plainAddress(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// normalNetwork returns a network without bits beyond its length, and as IPv4 if it has IPv4 addresses in
// IPv6 form.
func normalNetwork(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// maxBans bounds the bans in memory. newestBansSQL has the same number.
const maxBans = 100000
