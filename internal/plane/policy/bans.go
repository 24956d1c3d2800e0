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
	networks *networks
	byNode   []*Ban // of the bans that hold for a network, the one that ends last
}

func newBanSet(bans []Ban) *banSet {
	var prefixes []netip.Prefix
	for i := range bans {
		if bans[i].Network.IsValid() {
			prefixes = append(prefixes, bans[i].Network)
		}
	}
	b := &banSet{networks: newNetworks(prefixes)}
	b.byNode = make([]*Ban, len(b.networks.nodes))
	for i := range bans {
		if bans[i].Network.IsValid() {
			node := nodeOf(b.networks, bans[i].Network)
			b.byNode[node] = lastBan(b.byNode[node], &bans[i])
		}
	}
	for node, parent := range b.networks.parents {
		if parent >= 0 {
			b.byNode[node] = lastBan(b.byNode[node], b.byNode[parent])
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

// findBan returns the ban that holds for a request at a time and ends last, or nil: a ban of the
// network, else one of the identity. The identity may be nil.
func findBan(s *Snapshot, f *Facts, id *Identity, at int64) *Ban {
	if node := findNetwork(s.bans.networks, f.Address); node >= 0 {
		if ban := s.bans.byNode[node]; at < endOf(ban.Until) {
			return ban
		}
	}
	if id == nil {
		return nil
	}
	var last *Ban
	for i := range id.Bans {
		b := &id.Bans[i]
		// A key's ban does not count for another key of its user.
		if (b.KeyID == 0 || b.KeyID == id.KeyID) && (b.User == "" || b.User == id.User) && at < endOf(b.Until) {
			last = lastBan(last, b)
		}
	}
	return last
}

// isBanned reports whether the sender of a request is banned. It then refuses the request.
func isBanned(s *Snapshot, f *Facts, id *Identity, idAmounts *amounts, now time.Time, o *Verdict) bool {
	if idAmounts == nil {
		id = nil // the key has ended or is unknown
	}
	ban := findBan(s, f, id, now.UnixMicro())
	if ban == nil {
		return false
	}
	shutOut(ban, now, o)
	return true
}

// shutOut refuses a request because of a ban.
func shutOut(ban *Ban, now time.Time, o *Verdict) {
	o.Ban = ban
	o.Reason = Banned
	o.Status = 403
	if !ban.Until.IsZero() {
		o.RetryAfter = ban.Until.Sub(now)
	}
	o.written = true
}
