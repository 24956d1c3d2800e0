package policy

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"sort"
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

// bannedSenders are the users and API keys that are banned, for requests of senders that are
// not remembered and cannot be looked up. The bans of those that are remembered are in their
// identities.
type bannedSenders struct {
	byName map[string]*Identity // unread, with their bans; by name in the cache
	all    bool                 // there are no others
}

// bannedMost bounds the users and keys. The bans of the others are found by looking them up.
const bannedMost = 100000

// keysInterval is the time between two attempts to read the banned keys that fail.
const keysInterval = 10 * time.Second

// readBannedKeys reads the banned keys into rows. After a failure they stay as they are for a
// while.
func (p *Policy) readBannedKeys(ctx context.Context, now time.Time, rows *policyRows) (done bool) {
	if now.Before(p.keysAt) {
		return false
	}
	keys, err := read(ctx, p.db, refreshTimeout, "reading the banned API keys", bannedKeysSQL, 3)
	if err != nil {
		p.keysAt = now.Add(keysInterval)
	} else {
		rows.keys = keys
	}
	p.report("banned keys", err)
	return err == nil
}

func newBannedSenders(senders []*Identity) *bannedSenders {
	b := &bannedSenders{byName: make(map[string]*Identity, len(senders)), all: len(senders) <= bannedMost}
	for _, id := range senders {
		if len(b.byName) < bannedMost {
			id.Unread = true
			b.byName[nameOfIdentity(id)] = id
		}
	}
	return b
}

// find returns the identity of a sender that is not looked up, with the bans that are known.
func (b *bannedSenders) find(s credential) *Identity {
	if id := b.byName[s.name()]; id != nil {
		return id
	}
	return &Identity{Digest: s.digest, User: s.user, Unread: true}
}

// concern reports whether changes of users or API keys may change which keys are banned.
func (b *bannedSenders) concern(found changes) bool {
	for _, user := range found.users {
		if b.byName[NameOfUser(user)] != nil {
			return true
		}
	}
	for _, digest := range found.digests {
		if b.byName[NameOfKey(digestOf(digest))] != nil {
			return true
		}
	}
	return false
}

// incomplete is an error if there are more bans than are remembered.
func (b *bannedSenders) incomplete() error {
	if b.all {
		return nil
	}
	return fmt.Errorf("more than %d users and API keys are banned: the bans of the others hold only while the database answers", bannedMost)
}
