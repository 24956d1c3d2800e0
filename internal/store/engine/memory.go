package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// unavailable returns the reason why no batch can decide calls with a timeout now, or nil.
func (e *Engine) unavailable(timeout time.Duration) error {
	if atomic.LoadInt32(&e.closed) != 0 {
		return ratelimit.ErrClosed
	}
	err := e.health.Unavailable()
	if err == nil && timeout <= 0 {
		err = ratelimit.ErrTimeout // a caller may compute it from a past deadline
	}
	return err
}

// decideFromMemory replaces the keys of hits by their stored keys, and decides calls from memory: a call
// passes if leases have units for all its hits, and is refused if a refusal of one of its hits is remembered.
// failure is the reason why the database cannot decide the other calls, or nil. decideFromMemory
// returns the number of decided calls, with those that fail by ErrOwes.
func decideFromMemory(e *Engine, calls []*batch.Call, failure error) int {
	storeKeys(calls)
	decided := 0
	mayHaveRows := false // whether any call may have a remembered row, or become busy enough for a lease
	leasesSuffice := false
	rows := e.rows
	empty := atomic.LoadInt64(&rows.RowCount) == 0
	minHits := int32(rows.MinHits)
	var demand []int32         // nil before the first call with leases
	var limit *ratelimit.Limit // the previous hit's limit
	prefix := uint64(0)        // the hash of limit's prefix
	for _, c := range calls {
		c.Rows = c.Rows[:0]
		if c.Reset || len(c.Hits) == 0 {
			continue
		}
		leases := c.Hits[0].Limit.Lease > 0 // leases decide a call only if its first limit has them
		if empty && !leases {
			continue
		}
		if leases && demand == nil {
			demand = lease.Demand(rows)
		}
		mayHaveRow := false
		for i := range c.Hits {
			h := &c.Hits[i]
			if h.Limit != limit {
				limit = h.Limit
				prefix = rows.Hash(rows.Seed, lease.RowOf(limit, h.Key).Prefix)
			}
			at := (rows.Hash(rows.Seed, h.Key) + prefix) % lease.Hashes
			if leases && atomic.AddInt32(&demand[at], 1) >= minHits {
				mayHaveRow = true
			} else if atomic.LoadInt32(&rows.RowsBy[at]) > 0 {
				mayHaveRow = true
			}
		}
		if !mayHaveRow {
			continue
		}
		mayHaveRows = true
		if !leases {
			c.Rows = lease.Find(rows, c.Hits, c.Rows)
			continue
		}
		c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
		if c.Rows, leasesSuffice = lease.Use(rows, c.Hits, c.Decisions, c.Rows); leasesSuffice {
			decided++
		} else {
			c.Decisions = c.Decisions[:0]
		}
	}
	if decided > 0 && atomic.LoadInt32(&rows.Credit) <= 0 {
		// The interpreted plugin then looks for leases again: see lease.CreditPerHit.
		atomic.StoreInt32(&rows.Credit, int32(decided*lease.CreditPerHit))
	}
	if mayHaveRows && decided < len(calls) {
		decided += e.failOwing(calls, failure) + e.refuseRemembered(calls, failure)
	}
	return decided
}

// ErrOwes is the error of a call on a row that owes (lease.SetOwes): the process then decides by its share.
var ErrOwes = fmt.Errorf("%w for a row while it lacks charges of this process", ratelimit.ErrUnavailable)

// failOwing sets ErrOwes for the undecided calls with a row that owes, and returns their number. During an
// outage, when failure is not nil, no call needs this error.
func (e *Engine) failOwing(calls []*batch.Call, failure error) int {
	failed := 0
	if failure != nil || atomic.LoadInt64(&e.rows.OwingCount) == 0 {
		return 0
	}
	for _, c := range calls {
		if len(c.Decisions) > 0 || c.Reset {
			continue
		}
		for _, row := range c.Rows {
			if row != nil && lease.Owes(e.rows, row) {
				c.Err = ErrOwes
				failed++
				break
			}
		}
	}
	return failed
}

// storeKeys replaces the keys of hits by their stored keys. Most keys are equal to their stored keys, so
// storeKeys first inspects all keys together. If it called StoredKey for each key, an exact request in
// Traefik would take 50 more allocations.
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
		joined := strings.Join(keys, "\x00")
		plain = utf8.ValidString(joined) && strings.Count(joined, "\x00") < len(keys) &&
			!strings.Contains(joined, batch.DigestPrefix)
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

// refuseRemembered refuses the calls with a remembered refusal, and returns their number. failure is the
// error that the other calls get, or nil if they are not decided yet. With an error, refusals also count that
// are too old to be trusted while the database answers.
func (e *Engine) refuseRemembered(calls []*batch.Call, failure error) int {
	if errors.Is(failure, ratelimit.ErrClosed) {
		return 0
	}
	refused := 0
	outage := failure != nil
	var last refusedHit
	for _, c := range calls {
		if len(c.Rows) == 0 || c.HasIndependent && !outage || c.Err != nil {
			continue
		}
		for i, row := range c.Rows {
			if row == nil {
				continue
			}
			h := &c.Hits[i]
			if row == last.row && h.Limit == last.limit && h.Cost == last.cost && len(c.Hits) == 1 &&
				!h.Peek && !h.Independent && !c.Reset && len(c.Decisions) == 0 {
				c.Decisions = append(c.Decisions, last.decision)
				refused++
				break
			}
			if refusable(c, h) && lease.Refuses(e.rows, row, h, outage, &last.decision) {
				last.row = row
				last.limit = h.Limit
				last.cost = h.Cost
				for j := range c.Hits {
					c.Decisions = append(c.Decisions, batch.Undecided(&c.Hits[j]))
				}
				c.Decisions[i] = last.decision
				refused++
				break
			}
		}
	}
	if refused > 0 {
		atomic.AddInt64(&e.stats[RefusedFromMemory], int64(refused))
	}
	return refused
}

// Remembers reports whether a remembered refusal refuses a hit, and then sets its decision.
func (e *Engine) Remembers(h *ratelimit.Hit, d *ratelimit.Decision) bool {
	hits := []ratelimit.Hit{*h}
	hits[0].Key = h.StoredKey()
	rows := lease.Find(e.rows, hits, nil)
	outage := e.health.Unavailable() != nil
	if len(rows) == 0 || rows[0] == nil || h.Peek || atomic.LoadInt32(&e.closed) != 0 ||
		!lease.Refuses(e.rows, rows[0], &hits[0], outage, d) {
		return false
	}
	atomic.AddInt64(&e.stats[RefusedFromMemory], 1)
	return true
}

// refusedHit is the last hit that refuseRemembered refused. It saves time if the next hits are equal.
type refusedHit struct {
	row      *lease.Cached
	limit    *ratelimit.Limit
	cost     int64
	decision ratelimit.Decision
}

// refusable reports whether the refusal of a hit refuses its call. A call with a refund is never refused, and
// a hit that is Independent refuses no call.
func refusable(c *batch.Call, h *ratelimit.Hit) bool {
	if len(c.Decisions) > 0 || c.Reset || h.Peek || h.Independent {
		return false
	}
	for i := range c.Hits {
		if c.Hits[i].Cost < 0 {
			return false
		}
	}
	return true
}

// Rows returns the rows that the engine remembers.
func (e *Engine) Rows() *lease.Set { return e.rows }
