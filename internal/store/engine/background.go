package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// defaultSettleWait is the maximum time that a settlement waits for a request's batch.
const defaultSettleWait = 5 * time.Millisecond

// lane decides the calls that may wait for a synchronous standby, or all others. If the standby is lost,
// the others do not wait with them.
type lane struct {
	background *batch.Background
	queue      *batch.Queue // runs batches without requests
}

// laneOf returns the index of the lane of hits: 1 if the commit of one may wait for a standby, otherwise 0.
func laneOf(hits []ratelimit.Hit) int {
	for i := range hits {
		if hits[i].Limit.AwaitsDisk() {
			return 1
		}
	}
	return 0
}

// openLanes makes the lanes of a new store.
func (s *Store) openLanes(report func(error)) {
	for i := range s.lanes {
		l := &lane{}
		s.lanes[i] = l
		l.background = batch.NewBackground(batch.BackgroundOptions{
			Closing: s.server.closing, Health: s.server.health,
			Send: func() { batch.Enter(context.Background(), l.queue, batch.NewCall(), time.Now()) },
			Report: func(lost int, err error) {
				report(fmt.Errorf("ratelimit/postgres: %d settlements are lost: %w", lost, err))
			},
		})
		l.queue = s.newQueue(closeTimeout, i, nil, nil)
	}
}

// addCall adds a call to the background of its lane, see batch.Add.
func addCall(lanes [2]*lane, c *batch.Call, wait time.Duration) {
	batch.Add(lanes[laneOf(c.Hits)].background, c, wait)
}

// Settle corrects a charge in the background. It does nothing if the database did not make the charge.
func (s *Store) Settle(h *batch.Settlement) {
	if h.Source != ratelimit.FromPostgres && h.Source != ratelimit.FromLease ||
		h.Limit.Algorithm == ratelimit.InFlight {
		return
	}
	key := strings.Clone(h.Key) // it may be a part of a long request
	addCall(s.lanes, &batch.Call{Order: batch.Before,
		Hits:  []ratelimit.Hit{{Limit: h.Limit, Key: key, Cost: -h.Refund}},
		Claim: h.DecidedAt, Window: algorithm.WindowOf(h.Limit, h.DecidedAt, h.Reset), End: s.settled},
		s.settleWait)
}

// Charge charges, in the background, units of a durable limit that were admitted without the database. It
// charges at most the free quota, and creates a missing row. end is called once with the charged units. If it
// gets an error, the database may have charged all units.
func (s *Store) Charge(l *ratelimit.Limit, key string, units int64, end func(charged int64, err error)) {
	addCall(s.lanes, &batch.Call{Order: batch.Before, Partial: true,
		Hits: []ratelimit.Hit{{Limit: l, Key: key, Cost: units}},
		End: func(charged int64, err error) {
			s.settled(charged, err)
			end(charged, err)
		}}, s.settleWait)
}

// addBackground plans those of the background calls that have an order: batch.Before or batch.After.
func addBackground(p *plan, requests []*request, order batch.Order) {
	for _, r := range requests {
		c := r.call
		if c.Order != order {
			continue
		}
		h := &c.Hits[0]
		p.oneByOne = c.Isolated
		pos := position{}
		switch {
		case c.Partial:
			// Hits of one unit each, because a row may grant a part.
			pos = add(p, take, h.Limit, rowOf(h), 1, 0)
			pos.entry.n += h.Cost - 1
			if len(c.Rows) > 0 {
				pos.entry.row = c.Rows[0]
				pos.entry.leaseUnits += h.Cost
				p.remembered = true
			}
		case h.Limit.Algorithm == ratelimit.InFlight:
			pos.entry = addRelease(p, slotRange{h.Limit, rowOf(h), c.Claim, h.Cost}, c.Isolated)
		default:
			pos = add(p, refund, h.Limit, rowOf(h), -h.Cost, c.Window)
			if pos.entry.claim == 0 {
				pos.entry.claim = c.Claim
			}
		}
		r.positions = append(r.positions[:0], pos)
	}
	p.oneByOne = false // a round with oneByOne has no background calls
}

// applyBackground finishes background calls. A row grants the hits of an entry in the order of the plan, so a
// call gets the units that the hits before it have left.
func (w *work) applyBackground(requests []*request) {
	for _, r := range requests {
		c := r.call
		pos := &r.positions[0]
		c.Err = pos.entry.err
		if c.Granted = pos.entry.granted - pos.nth; c.Granted < 0 {
			c.Granted = 0
		}
		if c.Granted > c.Hits[0].Cost {
			c.Granted = c.Hits[0].Cost
		}
		w.clearRefunded(r)
	}
	w.finish(requests, nil)
}
