package engine

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// OpenQueue returns a queue for calls that a proxy sends itself, with its own Fill, which may be nil, and
// Deliver, see batch.Options. The queue lasts as long as the store.
func (s *Store) OpenQueue(timeout time.Duration, fill, deliver func(calls []*batch.Call)) *batch.Queue {
	var q *batch.Queue
	q = batch.NewQueue(batch.Options{
		Timeout: timeout, Workers: s.workers, Health: s.engine.server.health, Background: s.engine.background,
		Fill: fill, Deliver: deliver,
		Decide: func(calls []*batch.Call, deadline time.Time) {
			decided, unavailable := decideKnown(s, timeout, calls)
			if decided > 0 {
				calls = finishDecided(q, calls)
			}
			if unavailable != nil {
				batch.Finish(q, calls, unavailable)
			} else if len(calls) > 0 {
				s.engine.decide(q, calls, deadline)
			}
		},
		Expire: func(calls []*batch.Call) {
			storeKeys(calls)
			s.engine.failCalls(q, calls, s.engine.server.health.NoDecision(nil, true))
		},
	})
	s.mu.Lock()
	s.opened = append(s.opened, q)
	s.mu.Unlock()
	return q
}

// decideKnown decides the calls that need no database: the process holds units for all hits of a
// call, or a refusal of one of them is known. It returns how many calls have decisions now, and why
// the others cannot be decided, or nil. The keys are as they are stored after it.
func decideKnown(s *Store, timeout time.Duration, calls []*batch.Call) (int, error) {
	storeKeys(calls)
	rows := s.engine.rows
	leased := 0
	passes := false
	empty := lease.Empty(rows)
	for _, c := range calls {
		c.Rows = c.Rows[:0]
		if c.Reset || len(c.Hits) == 0 {
			continue
		}
		if c.Hits[0].Limit.Lease <= 0 {
			if !empty {
				c.Rows = lease.Find(rows, c.Hits, c.Rows)
			}
			continue
		}
		c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
		if c.Rows, passes = lease.Take(rows, c.Hits, c.Decisions, c.Rows); passes {
			leased++
		} else {
			c.Decisions = c.Decisions[:0]
		}
	}
	if leased == len(calls) {
		return leased, nil
	}
	unavailable := ratelimit.ErrClosed
	if atomic.LoadInt32(&s.closed) == 0 {
		unavailable = s.engine.server.health.Unavailable()
	}
	if unavailable == nil && timeout <= 0 {
		unavailable = ratelimit.ErrTimeout // it may be computed from a deadline that has passed
	}
	return leased + s.engine.refuseKnown(calls, unavailable), unavailable
}

// storeKeys replaces the keys of hits by the text that stands for them in the tables. Most keys are
// stored as they are, which one look at all of them shows: with a look at each, an exact request in
// Traefik has 468 allocations instead of 453, and with a call of StoredKey for each 505 (go test -run
// xxx -bench 'Interpreted$/Postgres$' -benchtime 8000x . in integration, in turns).
func storeKeys(calls []*batch.Call) {
	keys := make([]string, 0, 8)
	plain := true
	for _, c := range calls {
		for i := range c.Hits {
			h := &c.Hits[i]
			keys = append(keys, h.Key)
			if h.Secret || len(h.Key) > ratelimit.MaxKey {
				plain = false
			}
		}
	}
	if plain {
		text := strings.Join(keys, "\x00")
		plain = utf8.ValidString(text) && strings.Count(text, "\x00") < len(keys) &&
			!strings.Contains(text, batch.DigestPrefix)
	}
	if plain {
		return
	}
	for _, c := range calls {
		for i := range c.Hits {
			h := &c.Hits[i]
			h.Key = h.StoredKey()
		}
	}
}

// refuseKnown decides the calls with a refusal that is known, and returns how many these are.
// unavailable is why no decision can be had otherwise, or nil.
func (e *engine) refuseKnown(calls []*batch.Call, unavailable error) int {
	if errors.Is(unavailable, ratelimit.ErrClosed) {
		return 0
	}
	refused := 0
	believe := unavailable != nil
	var last refusedHit
	for _, c := range calls {
		if len(c.Rows) == 0 || c.Apart && !believe {
			continue
		}
		for i, row := range c.Rows {
			if row == nil {
				continue
			}
			h := &c.Hits[i]
			if row == last.row && h.Limit == last.limit && h.Cost == last.cost && len(c.Hits) == 1 &&
				!h.Peek &&
				!c.Reset && len(c.Decisions) == 0 {
				c.Decisions = append(c.Decisions, last.decision)
				refused++
				break
			}
			if refusable(c, h) && lease.Refuses(e.rows, row, h, believe, &last.decision) {
				last.row = row
				last.limit = h.Limit
				last.cost = h.Cost
				for range c.Hits {
					c.Decisions = append(c.Decisions, ratelimit.Decision{Allowed: true,
						Limit: c.Hits[len(c.Decisions)].Limit.Capacity(), Source: ratelimit.Undecided})
				}
				c.Decisions[i] = last.decision
				refused++
				break
			}
		}
	}
	if refused > 0 {
		e.counts.add(&tally{Blocked: int64(refused)})
	}
	return refused
}

// refusedHit is a hit that does not fit: its row, limit and cost, and the decision.
type refusedHit struct {
	row      *lease.Row
	limit    *ratelimit.Limit
	cost     int64
	decision ratelimit.Decision
}

// refusable reports whether a hit can be refused, and its call with it. A refund is made in any case. Hits
// apart are charged in any case, while the database can be asked.
func refusable(c *batch.Call, h *ratelimit.Hit) bool {
	if len(c.Decisions) > 0 || c.Reset || h.Peek || h.Apart {
		return false
	}
	for i := range c.Hits {
		if c.Hits[i].Cost < 0 {
			return false
		}
	}
	return true
}

// findRows looks for the rows of calls again, which may have changed while the calls waited.
func (e *engine) findRows(calls []*batch.Call) {
	for _, c := range calls {
		c.Rows = lease.Find(e.rows, c.Hits, c.Rows[:0])
	}
}

// finishDecided ends the wait of the calls with decisions, and returns the others.
func finishDecided(q *batch.Queue, calls []*batch.Call) []*batch.Call {
	var decided []*batch.Call
	n := 0
	for _, c := range calls {
		if len(c.Decisions) > 0 {
			decided = append(decided, c)
			continue
		}
		calls[n] = c
		n++
	}
	batch.Finish(q, decided, nil)
	return calls[:n]
}

// failCalls ends the wait of calls for which no decision can be had. A known refusal is one.
func (e *engine) failCalls(q *batch.Queue, calls []*batch.Call, err error) {
	for _, c := range calls {
		c.Decisions = c.Decisions[:0]
	}
	e.findRows(calls)
	if e.refuseKnown(calls, err) > 0 {
		calls = finishDecided(q, calls)
	}
	batch.Finish(q, calls, err)
}
