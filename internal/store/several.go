package store

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A request of several subjects can have hits in several shards. One of them is the home of the request: the
// shard of the first hit with a Subject, or else of the first hit. A hit that is Apart selects the home only
// if all hits are. The other shards decide first, each in a transaction of its own. If all of them allow
// their hits, the home decides. If a shard refuses, the charges of the other shards are refunded. No limit is
// exceeded, but a refused request holds units of some limits for a moment.

// shardHits holds the hits of a request that one shard decides or resets together.
type shardHits struct {
	shard     int
	reset     bool
	indexes   []int // the index of each hit in the request
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
	err       error
}

func newShardHits(shard int) *shardHits { return &shardHits{shard: shard} }

// takeSeveral decides hits that are in several shards.
func (s *Store) takeSeveral(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	ctx, cancel := health.WithDeadline(ctx, time.Now(), timeout)
	defer cancel()
	home, others := s.divide(hits)
	takeAll(ctx, s, timeout, others)
	err := firstError(others)
	passes := err == nil && allAllowed(others)
	if passes || hasUnconditional(home) {
		if !passes {
			home = unconditional(home)
		}
		takeAll(ctx, s, timeout, []*shardHits{home})
		if passes {
			err = firstError([]*shardHits{home})
		}
		passes = passes && err == nil && allAllowed([]*shardHits{home})
	}
	for i := range decisions {
		decisions[i] = ratelimit.Decision{Allowed: true, Limit: hits[i].Limit.Capacity(),
			Source: ratelimit.Undecided}
	}
	transferSlots(hits, others, passes)
	if !passes {
		s.refund(timeout, others)
	}
	for _, shard := range append(others, home) {
		if shard.err != nil {
			continue
		}
		for i, at := range shard.indexes {
			if i < len(shard.decisions) {
				decisions[at] = shard.decisions[i]
			}
		}
	}
	return err
}

// divide returns the hits in the home of a request, and those in other shards. A hit in another shard that is
// Apart has a shardHits of its own, so that its refusal refuses no other hit.
func (s *Store) divide(hits []ratelimit.Hit) (*shardHits, []*shardHits) {
	home := newShardHits(0)
	shards := make([]int, len(hits))
	best := 0
	for i := range hits {
		h := &hits[i]
		shards[i] = ShardOf(subjectOf(h), len(s.engines))
		rank := 1
		switch {
		case h.Apart:
		case h.Subject == "":
			rank = 2
		default:
			rank = 3
		}
		if rank > best {
			home.shard = shards[i]
			best = rank
		}
	}
	byShard := map[int]*shardHits{home.shard: home}
	var others []*shardHits
	for i := range hits {
		h := hits[i]
		shard := shards[i]
		to := byShard[shard]
		if to != home && h.Slot != nil {
			h.Slot = temporarySlot(h.Slot)
		}
		if to == nil || h.Apart && to != home {
			to = newShardHits(shard)
			others = append(others, to)
			if !h.Apart {
				byShard[shard] = to
			}
		}
		to.hits = append(to.hits, h)
		to.indexes = append(to.indexes, i)
	}
	return home, others
}

// temporarySlot returns a Slot for a hit until its request is decided; transferSlot then transfers its slots
// to the caller's Slot.
func temporarySlot(of *ratelimit.Slot) *ratelimit.Slot {
	return &ratelimit.Slot{Lost: func() { of.Lose() }}
}

// transferSlots transfers the acquired slots to the caller's Slots. If the request does not pass, it releases
// them, because the caller may retry with the same Slots.
func transferSlots(hits []ratelimit.Hit, all []*shardHits, passes bool) {
	for _, part := range all {
		for i := range part.hits {
			h := &part.hits[i]
			switch {
			case h.Slot == nil:
			case passes && part.err == nil || h.Apart:
				transferSlot(hits[part.indexes[i]].Slot, h.Slot)
			default:
				h.Slot.Release()
			}
		}
	}
}

// transferSlot makes the Slot to hold the slots of the Slot of.
func transferSlot(to, of *ratelimit.Slot) { to.Hold(func() { of.Release() }) }

// takeAll decides or resets the hits of all concurrently, and waits for all of them.
func takeAll(ctx context.Context, s *Store, timeout time.Duration, all []*shardHits) {
	var others sync.WaitGroup
	for i, part := range all {
		if i == len(all)-1 {
			takeIn(ctx, s, timeout, part)
		} else {
			startTake(ctx, s, timeout, part, &others)
		}
	}
	others.Wait()
}

// takeIn decides or resets the hits of one shard.
func takeIn(ctx context.Context, s *Store, timeout time.Duration, part *shardHits) {
	if part.reset {
		part.err = s.engines[part.shard].Reset(ctx, timeout, part.hits)
		return
	}
	part.decisions = make([]ratelimit.Decision, len(part.hits))
	part.err = s.engines[part.shard].Take(ctx, timeout, part.hits, part.decisions)
}

// startTake runs takeIn in the background, and counts it in all.
func startTake(ctx context.Context, s *Store, timeout time.Duration, part *shardHits, all *sync.WaitGroup) {
	all.Add(1)
	go func() {
		if err := batch.PanicError(func() { takeIn(ctx, s, timeout, part) }); err != nil {
			part.err = err
		}
		all.Done()
	}()
}

// firstError returns the first error of a shard. It ignores the errors of hits that are Apart.
func firstError(all []*shardHits) error {
	for _, part := range all {
		for i := range part.hits {
			if part.err != nil && !part.hits[i].Apart {
				return part.err
			}
		}
	}
	return nil
}

// allAllowed reports whether these shards allow all of their hits, except those that are Apart.
func allAllowed(all []*shardHits) bool {
	for _, part := range all {
		for i := range part.decisions {
			if !part.decisions[i].Allowed && !part.hits[i].Apart {
				return false
			}
		}
	}
	return true
}

// hasUnconditional reports whether any hit is a refund or Apart. Such a hit is decided even if the request
// does not pass.
func hasUnconditional(part *shardHits) bool {
	for i := range part.hits {
		if part.hits[i].Cost < 0 || part.hits[i].Apart {
			return true
		}
	}
	return false
}

// unconditional returns the hits that are refunds or Apart.
func unconditional(part *shardHits) *shardHits {
	some := &shardHits{shard: part.shard}
	for i := range part.hits {
		if part.hits[i].Cost < 0 || part.hits[i].Apart {
			some.hits = append(some.hits, part.hits[i])
			some.indexes = append(some.indexes, part.indexes[i])
		}
	}
	return some
}

// refund settles the charges of a refused request to 0, and waits up to the timeout. It uses settlements
// because a hit with a negative cost would also refund from a window that has begun since the charge. A shard
// that cannot be reached keeps the charge, so that less passes, never more.
func (s *Store) refund(timeout time.Duration, all []*shardHits) {
	var waits []*shardHits
	most := 0 // the largest number of hits in a shard
	for _, part := range all {
		if part.err != nil || !allAllowed([]*shardHits{part}) {
			continue
		}
		if len(part.hits) > most {
			most = len(part.hits)
		}
		wait := newShardHits(part.shard) // without hits: its batch takes the settlements along
		waits = append(waits, wait)
		for i := range part.hits {
			h := &part.hits[i]
			if h.Cost > 0 && !h.Peek && !h.Apart && h.Slot == nil {
				d := &part.decisions[i]
				settleHit(s.engines[part.shard], h, d)
				if d.Remaining += h.Cost; d.Remaining > d.Limit {
					d.Remaining = d.Limit
				}
			}
		}
	}
	for sent := 0; sent < most; sent += batch.MaxPerBatch {
		takeAll(context.Background(), s, timeout, waits)
	}
}

// settleHit settles the charge of a hit to 0.
func settleHit(s *engine.Store, h *ratelimit.Hit, d *ratelimit.Decision) {
	s.Settle(&batch.Settlement{Limit: h.Limit, Key: h.StoredKey(), Back: h.Cost, DecidedAt: d.DecidedAt,
		Reset: d.Reset.UnixMicro(), Source: d.Source})
}

// reset resets the rows of hits in their shards.
func (s *Store) reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	byShard := map[int]*shardHits{}
	var resets []*shardHits
	for i := range hits {
		shard := ShardOf(subjectOf(&hits[i]), len(s.engines))
		part := byShard[shard]
		if part == nil {
			part = newShardHits(shard)
			part.reset = true
			byShard[shard] = part
			resets = append(resets, part)
		}
		part.hits = append(part.hits, hits[i])
	}
	takeAll(ctx, s, timeout, resets)
	return firstError(resets)
}
