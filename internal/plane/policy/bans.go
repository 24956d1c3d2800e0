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

// banSet holds compiled bans. Of several bans of one sender, the one that ends last counts.
type banSet struct {
	bans     []Ban
	ends     []int64 // by place in bans
	networks *networks
	byNode   []int32          // by node of networks: of the bans that hold there, the one that ends last
	users    map[string]int32 // place in bans
	keys     map[int64]int32
}

func newBanSet(bans []Ban) *banSet {
	b := &banSet{bans: bans, ends: make([]int64, len(bans)), users: make(map[string]int32), keys: make(map[int64]int32)}
	var prefixes []netip.Prefix
	var places []int32
	for i := range bans {
		b.ends[i] = endOf(bans[i].Until)
		place := int32(i)
		if bans[i].Network.IsValid() {
			prefixes = append(prefixes, bans[i].Network)
			places = append(places, place)
		}
		if user := bans[i].User; user != "" {
			if _, known := b.users[user]; !known || b.ends[b.users[user]] < b.ends[i] {
				b.users[user] = place
			}
		}
		if key := bans[i].KeyID; key != 0 {
			if _, known := b.keys[key]; !known || b.ends[b.keys[key]] < b.ends[i] {
				b.keys[key] = place
			}
		}
	}
	b.networks = newNetworks(prefixes)
	b.byNode = make([]int32, len(prefixes))
	for i := range places {
		b.byNode[i] = -1
	}
	for i, place := range places {
		node := b.networks.nodes[i]
		if old := b.byNode[node]; old < 0 || b.ends[old] < b.ends[place] {
			b.byNode[node] = place
		}
	}
	for _, node := range b.networks.downwards {
		parent := b.networks.parents[node]
		if parent >= 0 && b.ends[b.byNode[parent]] > b.ends[b.byNode[node]] {
			b.byNode[node] = b.byNode[parent]
		}
	}
	return b
}

// findBan returns the ban that holds for a sender at a time, or nil. user is "" and key is 0
// if the sender has none.
func findBan(b *banSet, address netip.Addr, user string, key, at int64) *Ban {
	if node := findNetwork(b.networks, address); node >= 0 {
		if place := b.byNode[node]; at < b.ends[place] {
			return &b.bans[place]
		}
	}
	if user != "" && len(b.users) > 0 {
		if place, banned := b.users[user]; banned && at < b.ends[place] {
			return &b.bans[place]
		}
	}
	if key != 0 && len(b.keys) > 0 {
		if place, banned := b.keys[key]; banned && at < b.ends[place] {
			return &b.bans[place]
		}
	}
	return nil
}

// isBanned reports whether the sender of a request is banned. It then refuses the request.
func isBanned(s *Snapshot, f *Facts, id *Identity, known *amounts, now time.Time, o *Outcome) bool {
	at := now.UnixMicro()
	ban := findBan(s.bans, f.Address, o.User, o.KeyID, at)
	if ban == nil && known != nil {
		ban = banOf(id, at)
	}
	if ban == nil {
		return false
	}
	shutOut(ban, now, o)
	return true
}

// shutOut refuses a request because of a ban.
func shutOut(ban *Ban, now time.Time, o *Outcome) {
	o.Ban = ban
	o.Reason = Banned
	o.Status = 403
	if !ban.Until.IsZero() {
		o.RetryAfter = ban.Until.Sub(now)
	}
	o.written = true
}
