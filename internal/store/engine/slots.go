package engine

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// allocateSlots sets the slot numbers of a plan's takes on limits InFlight (see plan.inFlight). If no session
// can be started, it fails the groups of these takes and returns the error.
func (w *work) allocateSlots(p *plan) error {
	var failure error
	for _, g := range p.groups {
		if !g.takesSlots {
			continue
		}
		session, err := w.store.slots.Session(w.ctx, w.queue.Timeout)
		if err != nil {
			g.failure = w.noDecision(err)
			failure = g.failure
			continue
		}
		for _, e := range g.entries {
			n := e.n * e.cost
			if capacity := e.view.Limit.Capacity(); n > capacity {
				n = capacity
			}
			e.firstSlot = w.store.slots.Allocate(session, n)
		}
	}
	return failure
}

// inFlight is the definition of limits InFlight.
var inFlight = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight})

// holdSlots transfers the slots of granted hits to the Slots of their callers.
func (w *work) holdSlots(requests []*request) {
	for _, r := range requests {
		for i := range r.positions {
			pos := &r.positions[i]
			if e := pos.entry; e != nil && e.firstSlot != 0 && pos.nth < e.granted {
				w.store.slots.Hold(rangeOf(pos), &r.Hits[i])
			}
		}
	}
}

// HoldLocal counts the slots of a hit that was admitted without the database, until its Slot is released.
func (s *Store) HoldLocal(row lease.RowID, h *ratelimit.Hit) {
	cost := h.Cost
	s.slots.addLocal(row, cost)
	h.Slot.Hold(func() { s.slots.addLocal(row, -cost) })
}

// addLocal adds to the number of a row's slots that were admitted without the database.
func (s *slots) addLocal(row lease.RowID, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.local[row] += n; s.local[row] == 0 {
		delete(s.local, row)
	}
}

// rangeOf returns the allocated slots of a hit.
func rangeOf(pos *position) slotRange {
	row := pos.entry.id
	row.Key = strings.Clone(row.Key) // it may be a part of a long request
	return slotRange{Limit: pos.entry.view.Limit, Row: row,
		First: pos.entry.firstSlot + pos.nth*pos.entry.cost,
		N:     pos.entry.cost}
}

// releaseUncertain releases the slots that a request without a decision may have taken. It leaves out the
// hits of an entry beyond the capacity of the limit, because the row cannot have granted them.
func (w *work) releaseUncertain(r *request) {
	var allocated []slotRange
	for i := range r.positions {
		pos := &r.positions[i]
		e := pos.entry
		if e != nil && e.kind == take && e.firstSlot != 0 && pos.nth < e.view.Limit.Capacity()/e.cost {
			allocated = append(allocated, rangeOf(pos))
		}
	}
	w.store.slots.ReleaseUncertain(allocated)
}

// Release releases slots in the background. Each release is retried until the server has answered. Until
// then, each batch that takes slots of the row repeats the release before its takes, because the batch of the
// release may reach the server later.
func (s *slots) Release(ranges []slotRange) {
	s.mu.Lock()
	for _, r := range ranges {
		s.releasing[r.Row] = append(s.releasing[r.Row], r)
	}
	atomic.AddInt32(&s.unanswered, int32(len(ranges)))
	s.mu.Unlock()
	for _, r := range ranges {
		r := r
		addJob(s.lanes, &batch.Job{Hit: ratelimit.Hit{Limit: r.Limit, Key: r.Row.Key, Cost: r.N},
			Claim: r.First, Repeat: true, End: func(_ int64, err error) { s.releaseEnded(r, err) }}, 0)
	}
}

// releaseEnded ends the repetitions of a release. After a lost release, it ends the session with all its
// slots.
func (s *slots) releaseEnded(r slotRange, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.releasing[r.Row]
	for i := range left {
		if left[i].First == r.First {
			left = append(left[:i:i], left[i+1:]...)
			atomic.AddInt32(&s.unanswered, -1)
			break
		}
	}
	if s.releasing[r.Row] = left; len(left) == 0 {
		delete(s.releasing, r.Row)
	}
	if err != nil {
		s.renewedAt = time.Time{}
	}
}

// repeatReleases plans the unanswered releases of the rows on which requests take slots.
func (w *work) repeatReleases(p *plan, requests []*request) {
	s := w.store.slots
	if atomic.LoadInt32(&s.unanswered) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	repeated := map[lease.RowID]bool{}
	for _, r := range requests {
		for i := range r.Hits {
			row := rowOf(&r.Hits[i])
			for _, slots := range s.releasing[row] {
				if !repeated[row] {
					addRelease(p, slots, p.oneByOne)
				}
			}
			repeated[row] = true
		}
	}
}

// addRelease plans the release of slots. A row can have several releases in a statement.
func addRelease(p *plan, r slotRange, isolated bool) *entry {
	e := &entry{kind: release, id: r.Row, n: r.N, firstSlot: r.First}
	g := groupFor(p, 0, statementKey{kind: release, definition: inFlight, durable: r.Limit.Durable,
		sync: r.Limit.AwaitsDisk()}, isolated)
	g.entries = append(g.entries, e)
	return e
}

// ReleaseUncertain releases slots that may or may not have been taken.
func (s *slots) ReleaseUncertain(ranges []slotRange) {
	s.Release(ranges)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranges {
		s.uncertain = append(s.uncertain,
			uncertainSlots{slotRange: r, due: now.Add(releaseInterval), until: now.Add(lateTakeTime)})
	}
	if len(s.uncertain) > maxUncertain {
		s.uncertain = nil
		s.renewedAt = time.Time{}
	}
}

// dueUncertain returns the uncertain slots that are due for another release. During an outage (down) it
// returns none, and moves the end of all releases to lateTakeTime from now. The caller holds mu.
func (s *slots) dueUncertain(now time.Time, down bool) []slotRange {
	var again []slotRange
	var left []uncertainSlots
	for _, r := range s.uncertain {
		if down {
			r.until = now.Add(lateTakeTime)
		} else if now.After(r.due) {
			again = append(again, r.slotRange)
			r.due = now.Add(releaseInterval)
		}
		if down || r.due.Before(r.until) {
			left = append(left, r)
		}
	}
	s.uncertain = left
	return again
}

// endTimeout bounds the statement in Close that ends the session.
const endTimeout = 500 * time.Millisecond

// Close ends the session. The caller has released all slots, and closes the store afterwards.
func (s *slots) Close() {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session == 0 || s.server.health.Unavailable() != nil {
		return
	}
	// After a failure the session expires.
	_ = s.server.db.Run(context.Background(), endTimeout,
		s.statements(&pgdb.Statement{SQL: endSQL, Args: []any{session}, Unnamed: true}))
}
