package policy

import (
	"math"
	"net/netip"
	"time"
)

// never is the end of what does not end, in microseconds since the Unix epoch.
const never = math.MaxInt64

// always is the beginning of what has no beginning.
const always = math.MinInt64

// endOf returns an end in microseconds. The zero time is never.
func endOf(t time.Time) int64 {
	if t.IsZero() {
		return never
	}
	return t.UnixMicro()
}

// beginOf returns a beginning in microseconds. The zero time is always.
func beginOf(t time.Time) int64 {
	if t.IsZero() {
		return always
	}
	return t.UnixMicro()
}

// banSet holds bans, compiled. Of the bans of one network, user or API key, it holds the one that ends last.
type banSet struct {
	byNetwork map[netip.Prefix]*Ban
	lengths   []int // of these networks
	inForce   int64 // bans in the database
	bySender  map[Credential]*Ban
}

func newBanSet(bans []Ban) *banSet {
	b := &banSet{byNetwork: make(map[netip.Prefix]*Ban), bySender: make(map[Credential]*Ban)}
	for i := range bans {
		ban := &bans[i]
		if ban.Network.IsValid() {
			network := normalNetwork(ban.Network)
			b.lengths = addLength(b.lengths, network)
			b.byNetwork[network] = lastBan(b.byNetwork[network], ban)
			continue
		}
		of := credentialOf(&Identity{Digest: ban.Digest, User: ban.User})
		b.bySender[of] = lastBan(b.bySender[of], ban)
	}
	return b
}

// lastBan returns the ban that ends last, of two. Either may be nil.
func lastBan(a, b *Ban) *Ban {
	if a == nil || b != nil && endOf(b.Until) > endOf(a.Until) {
		return b
	}
	return a
}

// networkBan returns the ban of a network of a request that ends last, or nil.
func networkBan(b *banSet, f *Facts) *Ban {
	var last *Ban
	address := f.Address.Unmap()
	for _, bits := range b.lengths {
		if bits <= address.BitLen() {
			network, _ := address.Prefix(bits)
			last = lastBan(last, b.byNetwork[network])
		}
	}
	return last
}

// senderBan returns the ban of an identity that ends last, or nil: of its API key, or of its user.
func senderBan(b *banSet, id *Identity) *Ban {
	return lastBan(b.bySender[Credential{Digest: id.Digest}], b.bySender[Credential{User: id.User}])
}

// shutOut refuses a request if one of two bans holds at a time. Either may be nil.
func shutOut(ofNetwork, ofSender *Ban, now time.Time, o *Verdict) bool {
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

// addLength adds the length of a network to those that the networks of a map have. An address is looked up
// once for each length: few lengths are in use, however many networks there are.
func addLength(lengths []int, network netip.Prefix) []int {
	for _, bits := range lengths {
		if bits == network.Bits() {
			return lengths
		}
	}
	return append(lengths, network.Bits())
}

// plainAddress returns an address in the form for comparisons with networks: IPv4 in IPv6 form becomes IPv4,
// and the zone goes.
func plainAddress(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// normalNetwork returns a network without bits beyond its length, and as IPv4 if it is of IPv4
// addresses in IPv6 form.
func normalNetwork(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// bannedMost bounds the bans that hold: the newest ones. bansSQL has it, too.
const bannedMost = 100000
