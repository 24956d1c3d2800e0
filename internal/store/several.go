package store

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A request of several subjects can have hits in several shards. One of them is the home of the request: the
// shard of the first hit with a Subject, or else of the first hit. A hit that is Independent selects the home
// only if all hits are. The other shards decide first, each in a transaction of its own. If all of them allow
// their hits, the home decides. If a shard refuses, the charges of the other shards are refunded. No limit is
// exceeded, but a refused request holds units of some limits for a moment.

// shardHits holds the hits of a request that one shard decides or resets together.
type shardHits struct {
	shard     int
	indexes   []int // the index of each hit in the request
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
	err       error
}

// takeSeveral decides hits that are in several shards.
func (s *Store) takeSeveral(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	ctx, cancel := health.WithDeadline(ctx, time.Now(), timeout)
	defer cancel()
	take := func(part *shardHits) error {
		part.decisions = make([]ratelimit.Decision, len(part.hits))
		return s.engines[part.shard].Take(ctx, timeout, part.hits, part.decisions)
	}
	home, others := s.divide(hits)
	forEach(others, take)
	passes, err := result(others)
	if !passes {
		home = unconditional(home)
	}
	if len(home.hits) > 0 {
		alone := []*shardHits{home}
		forEach(alone, take)
		if passes {
			passes, err = result(alone)
		}
	}
	for i := range decisions {
		decisions[i] = ratelimit.Decision{Allowed: true, Quota: hits[i].Limit.Capacity(),
			Source: ratelimit.Undecided}
	}
	transferSlots(hits, others, passes)
	if !passes {
		s.refund(timeout, others)
	}
	for _, part := range append(others, home) {
		if part.err != nil {
			continue
		}
		for i, index := range part.indexes {
			decisions[index] = part.decisions[i]
		}
	}
	return err
}

// divide returns the hits in the home of a request, and those in other shards. A hit in another shard that is
// Independent has a shardHits of its own, so that its refusal refuses no other hit.
func (s *Store) divide(hits []ratelimit.Hit) (*shardHits, []*shardHits) {
	home := &shardHits{}
	best := 0
	for i := range hits {
		rank := 1
		switch {
		case hits[i].Independent:
		case hits[i].Subject == "":
			rank = 2
		default:
			rank = 3
		}
		if rank > best {
			home.shard = s.shardOf(&hits[i])
			best = rank
		}
	}
	byShard := map[int]*shardHits{home.shard: home}
	var others []*shardHits
	for i := range hits {
		h := hits[i]
		shard := s.shardOf(&h)
		to := byShard[shard]
		if to != home && h.Slot != nil {
			h.Slot = temporarySlot(h.Slot)
		}
		if to == nil || h.Independent && to != home {
			to = &shardHits{shard: shard}
			others = append(others, to)
			if !h.Independent {
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
func temporarySlot(s *ratelimit.Slot) *ratelimit.Slot {
	return &ratelimit.Slot{Lost: func() { s.Lose() }}
}

// transferSlots transfers the acquired slots to the caller's Slots. If the request does not pass, it releases
// them, because the caller may retry with the same Slots.
func transferSlots(hits []ratelimit.Hit, parts []*shardHits, passes bool) {
	for _, part := range parts {
		for i := range part.hits {
			h := &part.hits[i]
			switch {
			case h.Slot == nil:
			case passes && part.err == nil || h.Independent:
				transferSlot(hits[part.indexes[i]].Slot, h.Slot)
			default:
				h.Slot.Release()
			}
		}
	}
}

// transferSlot transfers the slots that from holds: to.Release then releases them.
func transferSlot(to, from *ratelimit.Slot) { to.Hold(func() { from.Release() }) }

// forEach calls do concurrently for each part and sets the part's err to the result.
func forEach(parts []*shardHits, do func(part *shardHits) error) {
	var running sync.WaitGroup
	for _, part := range parts {
		start(&running, part, do)
	}
	running.Wait()
}

// start calls do in the background and sets the part's err to the result. running counts the call.
func start(running *sync.WaitGroup, part *shardHits, do func(part *shardHits) error) {
	running.Add(1)
	go func() {
		if err := batch.PanicError(func() { part.err = do(part) }); err != nil {
			part.err = err
		}
		running.Done()
	}()
}

// result reports whether the shards allow all of their hits, and returns the first error of a shard. It
// ignores hits that are Independent.
func result(parts []*shardHits) (passes bool, err error) {
	passes = true
	for _, part := range parts {
		for i := range part.hits {
			switch {
			case part.hits[i].Independent:
			case part.err != nil:
				return false, part.err
			case !part.decisions[i].Allowed:
				passes = false
			}
		}
	}
	return passes, nil
}

// unconditional returns the hits that are decided even if the request does not pass: refunds, and hits that
// are Independent.
func unconditional(part *shardHits) *shardHits {
	kept := &shardHits{shard: part.shard}
	for i := range part.hits {
		if part.hits[i].Cost < 0 || part.hits[i].Independent {
			kept.hits = append(kept.hits, part.hits[i])
			kept.indexes = append(kept.indexes, part.indexes[i])
		}
	}
	return kept
}

// refund settles the charges of a refused request to 0 and waits up to the timeout. It uses settlements
// because a hit with a negative cost would also refund from a window that began after the charge. A shard
// that cannot be reached keeps the charge, so that less passes, never more.
func (s *Store) refund(timeout time.Duration, parts []*shardHits) {
	var charged []*shardHits
	maxHits := 0 // the largest number of hits in a shard
	for _, part := range parts {
		if passes, _ := result([]*shardHits{part}); !passes || part.err != nil {
			continue
		}
		if len(part.hits) > maxHits {
			maxHits = len(part.hits)
		}
		charged = append(charged, part)
		for i := range part.hits {
			h := &part.hits[i]
			if h.Cost > 0 && !h.Peek && !h.Independent && h.Slot == nil {
				d := &part.decisions[i]
				s.engines[part.shard].Settle(&batch.Settlement{Limit: h.Limit, Key: h.StoredKey(),
					Refund: h.Cost, DecidedAt: d.DecidedAt, Reset: d.Reset.UnixMicro(), Source: d.Source})
				if d.Remaining += h.Cost; d.Remaining > d.Quota {
					d.Remaining = d.Quota
				}
			}
		}
	}
	for sent := 0; sent < maxHits; sent += batch.MaxPerBatch {
		forEach(charged, func(part *shardHits) error { // its batch sends the settlements too
			_ = s.engines[part.shard].Take(context.Background(), timeout, nil, nil)
			return nil
		})
	}
}
