// Package known remembers refusals, so that the next hits on a used-up row need no database.
package known

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Refusals remembers rows that refused a hit. While a client keeps sending to a limit that
// is used up, the answer is known: other clients can only have taken more since. So a cost
// that does not fit into the row as it was then, at the time that it is now, is refused
// without asking the database, with the RetryAfter that the database would give if no
// other hit came. A smaller cost that would fit is asked about.
//
// Only a refund or a reset can make a remembered row wrong. One that this process makes
// clears the row here. One that another process makes is noticed within Trust, because a
// refusal is believed for no longer, unless no decision can be had: then a refusal is
// believed until the hit would pass.
type Refusals struct {
	max  int
	born time.Time
	seed maphash.Seed
	Hash func(seed maphash.Seed, key string) uint64 // maphash.String, except in a simulation

	mu   sync.Mutex // guards all that follows
	rows map[lease.RowID]*refusedRow
	last int64 // when the last of the rows ends

	// A batch may be about to remember a refusal when the row is cleared. So each batch and
	// each clearing of a row has a number, in the order in which they begin. cleared has the
	// number of the last clearing, by a hash of the key: a batch does not add a row that may
	// have been cleared after the batch began.
	sequence int64 // the last number; atomic
	cleared  [256]int64
}

// refusedRow is a row that refused a hit. It does not change. Times are microseconds: of
// the server's clock, or of Refusals' own (see clock).
type refusedRow struct {
	view     algorithm.View // the row, as the limit saw it at the server's time view.Now
	cost     int64          // what was refused
	passesAt int64          // the server's time from which on that cost passes
	at       int64          // own time of the refusal
	trusted  int64          // own time until which the refusal is believed, at most end
}

// Trust is how long a refusal is believed while the database can be asked, in
// microseconds.
const Trust = int64(time.Second / time.Microsecond)

// New returns what remembers no refusal yet, and no more than max of them.
func New(max int) *Refusals {
	return &Refusals{max: max, born: time.Now(), seed: maphash.MakeSeed(), Hash: maphash.String,
		rows: map[lease.RowID]*refusedRow{}}
}

// clock is the time since b was made, in microseconds.
func (b *Refusals) clock() int64 { return int64(time.Since(b.born) / time.Microsecond) }

// end is when a row refuses nothing any more, by the clock of Refusals.
func (r *refusedRow) end() int64 { return r.at + r.passesAt - r.view.Now }

// Begin returns the number of a batch that begins, for Remember.
func (b *Refusals) Begin() int64 {
	if b == nil {
		return 0
	}
	return atomic.AddInt64(&b.sequence, 1)
}

// Refuse decides the calls with a hit that is known not to fit, and returns how many these are.
// It does not refuse a call that has decisions, a reset, or a call with a refund, because the
// refund is made in any case. believe is whether no decision can be had: then refusals are
// believed until they end. Otherwise hits apart are charged in any case, so that a call with
// such hits is not refused. The frequent case is inline: one hit, equal to the one before.
func (b *Refusals) Refuse(calls []*batch.Call, believe bool) int {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rows) == 0 {
		return 0
	}
	now := b.clock()
	if now >= b.last {
		b.rows = map[lease.RowID]*refusedRow{}
		return 0
	}
	n := 0
	var last refusedHit
	for _, c := range calls {
		if c.Apart && !believe {
			continue
		}
		for i := range c.Hits {
			h := &c.Hits[i]
			row := b.rows[lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.Key}]
			if row == nil {
				continue
			}
			if row == last.row && h.Limit == last.limit && h.Cost == last.cost && len(c.Hits) == 1 && !h.Peek &&
				!c.Reset && len(c.Decisions) == 0 {
				c.Decisions = append(c.Decisions, last.decision)
				n++
				break
			}
			if refusable(c, h) && refuses(b, row, h, now, believe, &last) {
				for range c.Hits {
					c.Decisions = append(c.Decisions, ratelimit.Decision{Allowed: true,
						Limit: c.Hits[len(c.Decisions)].Limit.Capacity(), Source: ratelimit.Undecided})
				}
				c.Decisions[i] = last.decision
				n++
				break
			}
		}
	}
	return n
}

// refusable reports whether a hit can be refused, and its call with it.
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

// refusedHit is a hit that is known not to fit: its row, limit and cost, and the decision.
type refusedHit struct {
	row      *refusedRow
	limit    *ratelimit.Limit
	cost     int64
	decision ratelimit.Decision
}

// refuses reports whether a hit on a remembered row is known not to fit, and then sets the refused
// hit. The caller holds the mutex.
func refuses(b *Refusals, row *refusedRow, h *ratelimit.Hit, now int64, believe bool, refused *refusedHit) bool {
	if now >= row.end() {
		delete(b.rows, lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.Key})
		return false
	}
	if now >= row.trusted && !believe || !h.Limit.Equal(row.view.Limit) { // a reload makes new limits
		return false
	}
	serverNow := row.view.Now + now - row.at
	if h.Cost < row.cost && algorithm.Fits(h.Limit, &row.view.Row, serverNow, h.Cost) {
		return false
	}
	refused.row = row
	refused.limit = h.Limit
	refused.cost = h.Cost
	refused.decision = algorithm.Refused(h.Limit, &row.view.Row, serverNow, h.Cost)
	refused.decision.Source = ratelimit.FromBlocked
	return true
}

// clearedIndex is the index of a row in cleared.
func (b *Refusals) clearedIndex(id lease.RowID) int {
	return int(b.Hash(b.seed, id.Key) % uint64(len(b.cleared)))
}

// Remember adds a row that refused a cost with RetryAfter wait, in the batch with
// that number in sequence. The refusal is believed for up to so many microseconds. That of a limit
// InFlight is not: requests end at any time.
func (b *Refusals) Remember(id lease.RowID, view *algorithm.View, cost int64, wait time.Duration,
	sequence, believed int64) {
	if b == nil || view.Limit.Algorithm == ratelimit.InFlight || wait <= 0 || wait == ratelimit.Never {
		return
	}
	now := b.clock()
	micros := int64(wait / time.Microsecond)
	r := &refusedRow{view: *view, cost: cost, passesAt: view.Now + micros, at: now, trusted: now + micros}
	if micros > believed {
		r.trusted = now + believed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cleared[b.clearedIndex(id)] > sequence {
		return
	}
	if len(b.rows) >= b.max {
		b.makeRoom(now)
	}
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	b.rows[id] = r
	if end := r.end(); end > b.last {
		b.last = end
	}
}

// makeRoom deletes the ended rows among a few, or else any row. Iteration over a map
// starts at random. The caller holds the mutex.
func (b *Refusals) makeRoom(now int64) {
	steps := 0
	for id, r := range b.rows {
		if steps++; steps > 16 {
			break
		}
		if now >= r.end() {
			delete(b.rows, id)
		}
	}
	for id := range b.rows {
		if len(b.rows) < b.max {
			return
		}
		delete(b.rows, id)
	}
}

// Clear forgets a row to which quota was given back.
func (b *Refusals) Clear(id lease.RowID) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleared[b.clearedIndex(id)] = atomic.AddInt64(&b.sequence, 1)
	delete(b.rows, id)
}

// Size is how many rows are remembered.
func (b *Refusals) Size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rows) > 0 && b.clock() >= b.last {
		b.rows = map[lease.RowID]*refusedRow{}
	}
	return len(b.rows)
}

// ClearAll forgets all rows.
func (b *Refusals) ClearAll() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	sequence := atomic.AddInt64(&b.sequence, 1)
	for i := range b.cleared {
		b.cleared[i] = sequence
	}
	b.rows = map[lease.RowID]*refusedRow{}
}
