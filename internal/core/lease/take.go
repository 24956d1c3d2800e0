package lease

import (
	"math/bits"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Take decides a request from leases, if all of its hits have their units: it then uses them
// all, writes the decisions, and returns true. Otherwise it uses none, and counts the demand.
// Keys are as they are stored.
func Take(t *Set, hits []ratelimit.Hit, decisions []ratelimit.Decision) bool {
	if len(hits) == 0 {
		return false
	}
	for i := range hits {
		if hits[i].Limit.Lease <= 0 || hits[i].Cost < 1 {
			return false
		}
	}
	hashes := make([]uint64, 0, 4)
	leases := make([]*Lease, 0, 4)
	shards := uint32(0) // a bit for each shard, which are locked in the order of the set
	for i := range hits {
		hash := t.Hash(t.Seed, hits[i].Key)
		hashes = append(hashes, hash)
		shards |= uint32(1) << (hash % ShardCount)
	}
	now := Now(t)
	for rest := shards; rest != 0; rest &= rest - 1 {
		t.Shards[bits.TrailingZeros32(rest)].Mu.Lock()
	}
	all := true
	for i := range hits {
		l := find(t, t.Shards[hashes[i]%ShardCount], &hits[i], now)
		leases = append(leases, l)
		all = all && l != nil && l.First.N+l.Then.N >= hits[i].Cost
	}
	if all {
		t.Shards[hashes[0]%ShardCount].Taken++
	}
	begun := false
	for i := range hits {
		if all {
			use(t, leases[i], &hits[i], now, &decisions[i])
		} else if demand(t, t.Shards[hashes[i]%ShardCount], leases[i], &hits[i], hashes[i], now) {
			begun = true
		}
	}
	for rest := shards; rest != 0; rest &= rest - 1 {
		t.Shards[bits.TrailingZeros32(rest)].Mu.Unlock()
	}
	if begun {
		Start(t)
	}
	return all
}

// find returns the lease of a hit's row, or nil. The caller holds the shard's mutex.
func find(t *Set, s *Shard, h *ratelimit.Hit, now int64) *Lease {
	l := s.Rows[RowID{h.Limit.Durable, h.Limit.Prefix, h.Key}]
	if l == nil {
		return nil
	}
	if l.Limit != h.Limit {
		if !l.Limit.Equal(h.Limit) {
			remove(t, s, l, true)
			return nil
		}
		l.Limit = h.Limit // a reload makes new limits
	}
	settle(t, s, l, now)
	return l
}

// settle counts what the plugin has used, and ends units that have reached their end. After it, First
// is empty only if Then is. The caller holds the shard's mutex.
func settle(t *Set, s *Shard, l *Lease, now int64) {
	fold(s, l)
	if l.Then.N > 0 && now >= l.Then.Ends {
		end(t, l, l.Then, now)
		l.Then = Units{}
	}
	if l.First.N > 0 && now >= l.First.Ends {
		end(t, l, l.First, now)
		l.First = Units{}
	}
	if l.First.N == 0 {
		l.First = l.Then
		l.Then = Units{}
	}
}

// fold counts what the plugin has used of Spare, which is 0 then. The caller holds the shard's
// mutex.
func fold(s *Shard, l *Lease) {
	used := l.spared - l.Spare
	l.Used += used
	s.Taken += used
	l.First.N -= used
	if l.First.N < 0 {
		l.Then.N += l.First.N
		l.First.N = 0
	}
	l.Spare = 0
	l.spared = 0
}

// spare sets Spare. It leaves the units with which a renewal is wanted, unless the lease is being
// renewed. The lease is folded. The caller holds the shard's mutex.
func spare(l *Lease, now int64) {
	held := l.First.N + l.Then.N
	n := held
	if now >= l.asked {
		n = held - l.Low - 1
	}
	rest := l.Free + held
	if quota := l.Limit.Capacity(); rest > quota {
		rest = quota
	}
	if n <= 0 || rest < n {
		return
	}
	l.Spare = n
	l.spared = n
	ends := l.First.Ends
	if l.Then.N > 0 && l.Then.Ends < ends {
		ends = l.Then.Ends
	}
	l.SpareEnds = time.Duration(ends) * time.Microsecond
	l.Rest = rest - n
}

// Extend sets Spare to a cost at least, if the lease holds so much. It asks for a renewal as use does,
// and Maintain sends that for many leases at once: with a batch for the request itself, a leased request in
// Traefik has 300 allocations instead of 240 if each key has 13 requests a second. The caller holds the
// shard's mutex.
func Extend(t *Set, s *Shard, l *Lease, cost int64) bool {
	now := Now(t)
	settle(t, s, l, now)
	held := l.First.N + l.Then.N
	if held < cost {
		spare(l, now)
		return false
	}
	if held-cost <= l.Low {
		want(t, l, now)
	}
	spare(l, now)
	return l.Spare >= cost
}

// use takes a hit's units, which are there, and decides it. The caller holds the shard's
// mutex.
func use(t *Set, l *Lease, h *ratelimit.Hit, now int64, d *ratelimit.Decision) {
	if !h.Peek {
		l.Used += h.Cost
		if rest := h.Cost - l.First.N; rest >= 0 {
			l.First = l.Then
			l.First.N -= rest
			l.Then = Units{}
		} else {
			l.First.N -= h.Cost
		}
	}
	held := l.First.N + l.Then.N
	if held <= l.Low {
		want(t, l, now)
	}
	spare(l, now)
	quota := h.Limit.Capacity()
	remaining := l.Free + held
	if remaining > quota {
		remaining = quota
	}
	if remaining < 0 {
		remaining = 0
	}
	*d = ratelimit.Decision{Allowed: true, Limit: quota, Remaining: remaining, Reset: l.Reset, DecidedAt: l.answered,
		Source: ratelimit.FromLease}
}

// demand counts a hit that has to be asked about. If its key has shown demand, it begins a
// lease without units, and returns true. The caller holds the shard's mutex.
func demand(t *Set, s *Shard, l *Lease, h *ratelimit.Hit, hash uint64, now int64) bool {
	if l != nil && l.Free-h.Cost <= l.lost {
		giveBack(t, s, l) // near the limit the database decides. The units go back before the hit is decided
	}
	if h.Peek || s.ended || h.Cost > h.Limit.Capacity() {
		return false
	}
	if l != nil {
		l.Used += h.Cost
		want(t, l, now)
		return false
	}
	horizon := Horizon(t, h.Limit)
	if horizon == 0 {
		return false
	}
	c := &s.demands[hash/ShardCount%shardDemands]
	switch {
	case c.hits == 0 || now-c.since > horizon:
		*c = demandCount{hash: hash, since: now, hits: 1, cost: h.Cost}
		return false
	case c.hash != hash:
		c.hits--
		return false
	}
	c.hits++
	c.cost += h.Cost
	if c.hits < leastHits || atomic.LoadInt64(&t.count) >= t.max {
		return false
	}
	row := RowID{h.Limit.Durable, h.Limit.Prefix, strings.Clone(h.Key)} // the key may be a part of a long request
	l = &Lease{Limit: h.Limit, row: row, since: c.since, Used: c.cost, perHit: c.cost / c.hits}
	s.Rows[row] = l
	*c = demandCount{}
	atomic.AddInt64(&t.count, 1)
	for {
		shortest := atomic.LoadInt64(&t.shortestHorizon)
		if horizon >= shortest || atomic.CompareAndSwapInt64(&t.shortestHorizon, shortest, horizon) {
			return true
		}
	}
}
