package shards

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A request of several subjects has its hits in several shards. Its home is the shard of the first hit that
// names a subject, or else of the first hit, and not that of a hit apart if there are others. The hits of
// other shards come first, each shard in a transaction of its own. If all of them pass, the home decides. If
// a shard refuses, the charges of the others are refunded. So nothing passes beyond a limit, but a refused
// request holds some of it for a moment.

// inShard holds the hits of a request that one shard decides or resets together.
type inShard struct {
	shard     int
	reset     bool
	at        []int // of each hit, its index in the request
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
	err       error
}

func newInShard(shard int) *inShard { return &inShard{shard: shard} }

// takeSeveral decides hits that are not in one shard.
func (s *Store) takeSeveral(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	ctx, cancel := health.WithDeadline(ctx, time.Now(), timeout)
	defer cancel()
	home, others := s.divide(hits)
	takeAll(ctx, s, timeout, others)
	err := failed(others)
	passes := err == nil && allAllowed(others)
	if passes || charged(home) {
		if !passes {
			home = refundsOf(home)
		}
		takeAll(ctx, s, timeout, []*inShard{home})
		if passes {
			err = failed([]*inShard{home})
		}
		passes = passes && err == nil && allAllowed([]*inShard{home})
	}
	for i := range decisions {
		decisions[i] = ratelimit.Decision{Allowed: true, Limit: hits[i].Limit.Capacity(),
			Source: ratelimit.Undecided}
	}
	holdSlots(hits, others, passes)
	if !passes {
		s.refund(timeout, others)
	}
	for _, shard := range append(others, home) {
		if shard.err != nil {
			continue
		}
		for i, at := range shard.at {
			if i < len(shard.decisions) {
				decisions[at] = shard.decisions[i]
			}
		}
	}
	return err
}

// divide divides the hits of a request: those of its home, and those of other shards. A hit apart of another
// shard is by itself, so that its refusal refuses nothing.
func (s *Store) divide(hits []ratelimit.Hit) (*inShard, []*inShard) {
	home := newInShard(0)
	shards := make([]int, len(hits))
	best := 0
	for i := range hits {
		h := &hits[i]
		shards[i] = Of(subjectOf(h), len(s.engines))
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
	byShard := map[int]*inShard{home.shard: home}
	var others []*inShard
	for i := range hits {
		h := hits[i]
		shard := shards[i]
		to := byShard[shard]
		if to != home && h.Slot != nil {
			h.Slot = passingSlot(h.Slot)
		}
		if to == nil || h.Apart && to != home {
			to = newInShard(shard)
			others = append(others, to)
			if !h.Apart {
				byShard[shard] = to
			}
		}
		to.hits = append(to.hits, h)
		to.at = append(to.at, i)
	}
	return home, others
}

// passingSlot returns a slot for a hit until its request is decided. Then the slot of the caller holds what
// it holds.
func passingSlot(of *ratelimit.Slot) *ratelimit.Slot {
	return &ratelimit.Slot{Lost: func() { of.Lose() }}
}

// holdSlots transfers the acquired slots to the caller's slots, or releases them if the request does not
// pass: the caller may ask again with the same slot.
func holdSlots(hits []ratelimit.Hit, all []*inShard, passes bool) {
	for _, in := range all {
		for i := range in.hits {
			h := &in.hits[i]
			switch {
			case h.Slot == nil:
			case passes && in.err == nil || h.Apart:
				holdSlot(hits[in.at[i]].Slot, h.Slot)
			default:
				h.Slot.Release()
			}
		}
	}
}

// holdSlot transfers what a slot holds to another one.
func holdSlot(to, of *ratelimit.Slot) { to.Hold(func() { of.Release() }) }

// takeAll decides or resets the hits of some shards at the same time.
func takeAll(ctx context.Context, s *Store, timeout time.Duration, all []*inShard) {
	var others sync.WaitGroup
	for i, in := range all {
		if i == len(all)-1 {
			takeIn(ctx, s, timeout, in)
		} else {
			startTake(ctx, s, timeout, in, &others)
		}
	}
	others.Wait()
}

// takeIn decides or resets the hits of a shard.
func takeIn(ctx context.Context, s *Store, timeout time.Duration, in *inShard) {
	if in.reset {
		in.err = s.engines[in.shard].Reset(ctx, timeout, in.hits)
		return
	}
	in.decisions = make([]ratelimit.Decision, len(in.hits))
	in.err = s.engines[in.shard].Take(ctx, timeout, in.hits, in.decisions)
}

// startTake calls takeIn in the background.
func startTake(ctx context.Context, s *Store, timeout time.Duration, in *inShard, all *sync.WaitGroup) {
	all.Add(1)
	go func() {
		if err := batch.PanicError(func() { takeIn(ctx, s, timeout, in) }); err != nil {
			in.err = err
		}
		all.Done()
	}()
}

// failed returns the error of one of the shards. The failure of a hit apart fails nothing.
func failed(all []*inShard) error {
	for _, in := range all {
		for i := range in.hits {
			if in.err != nil && !in.hits[i].Apart {
				return in.err
			}
		}
	}
	return nil
}

// allAllowed reports whether the request passes, as far as these shards are asked.
func allAllowed(all []*inShard) bool {
	for _, in := range all {
		for i := range in.decisions {
			if !in.decisions[i].Allowed && !in.hits[i].Apart {
				return false
			}
		}
	}
	return true
}

// charged reports whether a hit is a refund or apart: then it is decided in any case.
func charged(in *inShard) bool {
	for i := range in.hits {
		if in.hits[i].Cost < 0 || in.hits[i].Apart {
			return true
		}
	}
	return false
}

// refundsOf returns the hits for which charged is true.
func refundsOf(in *inShard) *inShard {
	some := &inShard{shard: in.shard}
	for i := range in.hits {
		if in.hits[i].Cost < 0 || in.hits[i].Apart {
			some.hits = append(some.hits, in.hits[i])
			some.at = append(some.at, in.at[i])
		}
	}
	return some
}

// refund settles the charges of a request that does not pass to nothing, and waits for that until the
// timeout. A caller's refund would take from a window that has begun since, and a settlement does not. A
// shard that cannot be reached keeps the charge: less passes then, never more.
func (s *Store) refund(timeout time.Duration, all []*inShard) {
	var waits []*inShard
	most := 0 // hits of a shard
	for _, in := range all {
		if in.err != nil || !allAllowed([]*inShard{in}) {
			continue
		}
		if len(in.hits) > most {
			most = len(in.hits)
		}
		wait := newInShard(in.shard) // without hits, since the settlements go with the next batch
		waits = append(waits, wait)
		for i := range in.hits {
			h := &in.hits[i]
			if h.Cost > 0 && !h.Peek && !h.Apart && h.Slot == nil {
				d := &in.decisions[i]
				settleHit(s.engines[in.shard], h, d)
				if d.Remaining += h.Cost; d.Remaining > d.Limit {
					d.Remaining = d.Limit
				}
			}
		}
	}
	for sent := 0; sent < most; sent += batch.MostTogether {
		takeAll(context.Background(), s, timeout, waits)
	}
}

// settleHit settles the charge of a hit to nothing.
func settleHit(s *engine.Store, h *ratelimit.Hit, d *ratelimit.Decision) {
	s.Settle(&batch.Settlement{Limit: h.Limit, Key: h.StoredKey(), Back: h.Cost, DecidedAt: d.DecidedAt,
		Reset: d.Reset.UnixMicro(), Source: d.Source})
}

// reset resets the rows of hits in their shards.
func (s *Store) reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	byShard := map[int]*inShard{}
	var resets []*inShard
	for i := range hits {
		shard := Of(subjectOf(&hits[i]), len(s.engines))
		in := byShard[shard]
		if in == nil {
			in = newInShard(shard)
			in.reset = true
			byShard[shard] = in
			resets = append(resets, in)
		}
		in.hits = append(in.hits, hits[i])
	}
	takeAll(ctx, s, timeout, resets)
	return failed(resets)
}
