package store

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A request of several subjects can have hits in several shards. The shards decide at the same time, each in
// a transaction of its own. If a shard refuses or fails, the charges of the other shards are refunded. No
// limit is exceeded, but a request that does not pass holds units of some limits for a moment.

// shardHits holds the hits of a request that one shard decides or resets together.
type shardHits struct {
	shard     int
	indexes   []int // the index of each hit in the request
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
	err       error
}

// takeSeveral decides hits that are in several shards. The request arrived at arrived.
func (s *Store) takeSeveral(ctx context.Context, arrived time.Time, timeout time.Duration,
	hits []ratelimit.Hit, decisions []ratelimit.Decision) error {
	ctx, cancel := health.WithDeadline(ctx, arrived, timeout)
	defer cancel()
	parts := s.divide(hits)
	forEach(parts, func(part *shardHits) error {
		part.decisions = make([]ratelimit.Decision, len(part.hits))
		return s.engines[part.shard].Call(ctx, arrived, timeout, part.hits, part.decisions, false)
	})
	passes, err := allPass(parts)
	transferHolds(hits, parts, passes)
	if !passes {
		s.refund(timeout, parts)
	}
	for _, part := range parts {
		for i, index := range part.indexes {
			if part.err == nil {
				decisions[index] = part.decisions[i]
			} else {
				decisions[index] = batch.Undecided(&hits[index])
			}
		}
	}
	return err
}

// divide returns the hits in each shard. They have temporary Holds.
func (s *Store) divide(hits []ratelimit.Hit) []*shardHits {
	byShard := map[int]*shardHits{}
	var parts []*shardHits
	for i := range hits {
		h := hits[i]
		shard := s.shardOf(&h)
		part := byShard[shard]
		if part == nil {
			part = &shardHits{shard: shard}
			byShard[shard] = part
			parts = append(parts, part)
		}
		if h.Hold != nil {
			h.Hold = temporaryHold(h.Hold)
		}
		part.hits = append(part.hits, h)
		part.indexes = append(part.indexes, i)
	}
	return parts
}

// temporaryHold returns a Hold for a hit until its request is decided; transferHold then transfers its slots
// to the caller's Hold.
func temporaryHold(of *ratelimit.Hold) *ratelimit.Hold {
	return &ratelimit.Hold{Lost: func() { of.Lose() }}
}

// transferHolds transfers the acquired slots to the caller's Holds. If the request does not pass, it releases
// them, because the caller may retry with the same Holds.
func transferHolds(hits []ratelimit.Hit, parts []*shardHits, passes bool) {
	for _, part := range parts {
		for i := range part.hits {
			h := &part.hits[i]
			switch {
			case h.Hold == nil:
			case passes && part.err == nil || h.Independent:
				transferHold(hits[part.indexes[i]].Hold, h.Hold)
			default:
				h.Hold.Release()
			}
		}
	}
}

// transferHold transfers the slots that from holds: to.Release then releases them.
func transferHold(to, from *ratelimit.Hold) { to.Acquire(func() { from.Release() }) }

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
		part.err = batch.Try(func() error { return do(part) })
		running.Done()
	}()
}

// allPass reports whether the shards allow all of their hits, apart from those that are Independent. If no
// shard refuses, allPass returns the error of a shard that failed, or nil.
func allPass(parts []*shardHits) (bool, error) {
	var err error
	for _, part := range parts {
		for i := range part.hits {
			switch {
			case part.hits[i].Independent:
			case part.err != nil:
				err = part.err
			case !part.decisions[i].Allowed:
				return false, nil
			}
		}
	}
	return err == nil, err
}

// refund undoes the charges of a request that does not pass, as settlements to a cost of 0, and waits up to
// the timeout. It sends no hits with a negative cost, because those would also refund a later window. A shard
// that cannot be reached keeps the charge, so that less passes, never more.
func (s *Store) refund(timeout time.Duration, parts []*shardHits) {
	forEach(parts, func(part *shardHits) error {
		if passes, _ := allPass([]*shardHits{part}); !passes || part.err != nil {
			return part.err
		}
		e := s.engines[part.shard]
		for i := range part.hits {
			h := &part.hits[i]
			if h.Cost > 0 && !h.Peek && !h.Independent && h.Hold == nil {
				d := &part.decisions[i]
				e.Adjust(&batch.Charge{Limit: h.Limit, Key: h.StoredKey(), Charged: h.Cost,
					DecidedAt: d.DecidedAt, Reset: d.Reset.UnixMicro(), Source: d.Source})
				if d.Remaining += h.Cost; d.Remaining > d.Quota {
					d.Remaining = d.Quota
				}
			}
		}
		// The batch of a call without hits sends the settlements too.
		_ = e.Call(context.Background(), time.Now(), timeout, nil, nil, false)
		return nil
	})
}
