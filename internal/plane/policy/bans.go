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

// banSet holds the bans of networks, compiled.
type banSet struct {
	lengths   networkLengths
	byNetwork map[netip.Prefix]*Ban // the one that ends last
}

func newBanSet(bans []Ban) *banSet {
	b := &banSet{byNetwork: make(map[netip.Prefix]*Ban)}
	for i := range bans {
		if bans[i].Network.IsValid() {
			network := normalNetwork(bans[i].Network)
			b.lengths.add(network)
			b.byNetwork[network] = lastBan(b.byNetwork[network], &bans[i])
		}
	}
	return b
}

// lastBan is the ban that ends last, of two. Either may be nil.
func lastBan(a, b *Ban) *Ban {
	if a == nil || b != nil && endOf(b.Until) > endOf(a.Until) {
		return b
	}
	return a
}

// findBan returns the ban that holds for a request at a time and ends last, or nil: a ban of its networks, else one of
// the identity. The identity may be nil.
func findBan(s *Snapshot, f *Facts, id *Identity, at int64) *Ban {
	var last *Ban
	if len(s.bans.byNetwork) > 0 {
		address := plainAddress(f.Address)
		for _, bits := range lengthsFor(&s.bans.lengths, address) {
			network, _ := address.Prefix(bits) // of a length that such an address has
			last = lastBan(last, s.bans.byNetwork[network])
		}
		if last != nil && at < endOf(last.Until) {
			return last
		}
		last = nil
	}
	if id == nil {
		return nil
	}
	for i := range id.Bans {
		b := &id.Bans[i]
		// A key's ban does not count for another key of its user.
		if (b.KeyID == 0 || b.KeyID == id.KeyID) && (b.User == "" || b.User == id.User) && at < endOf(b.Until) {
			last = lastBan(last, b)
		}
	}
	return last
}

// shutOut refuses a request because of a ban.
func shutOut(ban *Ban, now time.Time, o *Verdict) {
	o.Ban = ban
	o.Reason = Banned
	o.Status = 403
	if !ban.Until.IsZero() {
		o.RetryAfter = ban.Until.Sub(now)
	}
}
