package postgres

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// blocked remembers rows that refused a hit. While a client keeps sending to a limit that
// is used up, the answer is known: other clients can only have taken more since. So a cost
// that does not fit into the row as it was then, at the time that it is now, is refused
// without asking the database, with the RetryAfter that the database would give if no
// other hit came. A smaller cost that would fit is asked about.
//
// Only a refund or a reset can make a remembered row wrong. One that this process makes
// clears the row here. One that another process makes is noticed within trust, because a
// refusal is believed for no longer, unless no decision can be had: then a refusal is
// believed until the hit would pass.
type blocked struct {
	max  int
	born time.Time
	seed maphash.Seed

	mu   sync.Mutex // guards all that follows
	rows map[rowKey]*blockedRow
	last int64 // when the last of the rows ends

	// A refusal may be on its way to be remembered while the row is cleared. So each
	// batch begins at a step, and each clearing of a row is a step, remembered by a hash
	// of the row in bounded memory: a batch does not add a row that may have been cleared
	// after the batch began.
	step    int64 // atomic
	cleared [256]int64
}

// blockedRow is a row that refused a hit. It does not change. Times are microseconds: of
// the server's clock, or of blocked's own (see clock).
type blockedRow struct {
	view    algorithm.View // the row, as the limit saw it at the server's time view.Now
	cost    int64          // what was refused
	passes  int64          // server's time at which that cost passes
	at      int64          // own time of the refusal
	trusted int64          // own time until which the refusal is believed, at most end
}

// trust is how long a refusal is believed while the database can be asked, in
// microseconds.
const trust = int64(time.Second / time.Microsecond)

func newBlocked(max int) *blocked {
	return &blocked{max: max, born: time.Now(), seed: maphash.MakeSeed(), rows: map[rowKey]*blockedRow{}}
}

// clock is the time since b was made, in microseconds.
func (b *blocked) clock() int64 { return int64(time.Since(b.born) / time.Microsecond) }

// end is when a row refuses nothing any more, by blocked's own clock.
func (r *blockedRow) end() int64 { return r.at + r.passes - r.view.Now }

// anyBlocked reports whether a row is remembered.
func anyBlocked(b *blocked) bool { return b != nil && b.size() > 0 }

// refusesAny reports whether one of a request's hits is known not to fit, and then writes
// the decisions. A request with a refund is not refused, because the refund is made in any
// case. believe is whether refusals are believed until they end.
func refusesAny(b *blocked, hits []ratelimit.Hit, decisions []ratelimit.Decision, believe bool) bool {
	if !anyBlocked(b) {
		return false
	}
	for i := range hits {
		if hits[i].Cost < 0 {
			return false
		}
	}
	now := b.clock()
	for i := range hits {
		h := &hits[i]
		if h.Peek || h.Apart {
			continue
		}
		d, known := refuses(b, h, now, believe)
		if !known {
			continue
		}
		for j := range decisions {
			decisions[j] = ratelimit.Decision{Allowed: true, Limit: hits[j].Limit.Capacity(), Source: ratelimit.Undecided}
		}
		decisions[i] = d
		return true
	}
	return false
}

// refuseAll does what refusesAny does, for many calls without decisions: it writes the
// decisions of those that are known not to fit, and returns how many these are. The frequent
// cases are decided in one loop: a call without a remembered row, and a call of one hit of
// the cost that the row refused.
func refuseAll(b *blocked, calls []*batch.Call) int {
	if !anyBlocked(b) {
		return 0
	}
	now := b.clock()
	var refused, unusual []*batch.Call
	var last *blockedRow
	var views []*algorithm.View // of the rows that refused
	var waits []int64           // of each view
	var at []int                // of each refused call, the place of its view
	b.mu.Lock()
	for _, c := range calls {
		if c.Apart {
			continue // its hits apart are charged in any case
		}
		var row *blockedRow
		for i := range c.Hits {
			h := &c.Hits[i]
			if row = b.rows[rowKey{h.Limit.Durable, h.Limit.Prefix, h.Key}]; row != nil {
				break
			}
		}
		if row == nil {
			continue
		}
		h := &c.Hits[0]
		same := h.Limit == row.view.Limit || h.Limit.Equal(row.view.Limit) // a reload makes new limits
		if len(c.Hits) > 1 || c.Reset || h.Peek || h.Cost != row.cost || !same || now >= row.trusted {
			unusual = append(unusual, c)
			continue
		}
		if row != last {
			last = row
			views = append(views, &algorithm.View{Limit: h.Limit, Row: row.view.Row, Now: row.view.Now + now - row.at})
			waits = append(waits, row.at+row.passes-row.view.Now-now)
		}
		refused = append(refused, c)
		at = append(at, len(views)-1)
	}
	b.mu.Unlock()
	decisions := refusals(views, waits)
	for i, c := range refused {
		c.Decisions = append(c.Decisions, decisions[at[i]])
	}
	n := len(refused)
	for _, c := range unusual {
		decisions := make([]ratelimit.Decision, len(c.Hits))
		if !c.Reset && refusesAny(b, c.Hits, decisions, false) {
			c.Decisions = append(c.Decisions, decisions...)
			n++
		}
	}
	return n
}

// refusals returns the decisions of rows that refuse a hit for that long.
func refusals(views []*algorithm.View, waits []int64) []ratelimit.Decision {
	for from, to := 0, 0; from < len(views); from = to {
		for to < len(views) && views[to].Limit == views[from].Limit {
			to++
		}
		algorithm.LookAll(views[from:to])
	}
	var decisions []ratelimit.Decision
	for i, v := range views {
		decisions = append(decisions, ratelimit.Decision{
			Limit: v.Quota, Remaining: algorithm.Remaining(v.Quota, v.Free), Reset: time.UnixMicro(v.Reset),
			RetryAfter: algorithm.RetryAfter(waits[i]), Source: ratelimit.FromBlocked,
		})
	}
	return decisions
}

// refuses reports whether a hit is known not to fit, and the decision then.
func refuses(b *blocked, h *ratelimit.Hit, now int64, believe bool) (ratelimit.Decision, bool) {
	id := rowOf(h)
	b.mu.Lock()
	known := b.rows[id]
	if known != nil && now >= known.end() {
		delete(b.rows, id)
		known = nil
	}
	b.mu.Unlock()
	if known == nil || now >= known.trusted && !believe || !h.Limit.Equal(known.view.Limit) {
		return ratelimit.Decision{}, false
	}
	serverNow := known.view.Now + now - known.at
	if algorithm.Fits(h.Limit, &known.view.Row, serverNow, h.Cost) {
		return ratelimit.Decision{}, false
	}
	d := algorithm.Refused(h.Limit, &known.view.Row, serverNow, h.Cost)
	d.Source = ratelimit.FromBlocked
	return d, true
}

// slot is the place of a row in cleared.
func (b *blocked) slot(id rowKey) int {
	return int(maphash.String(b.seed, id.key) % uint64(len(b.cleared)))
}

// remember adds a row that refused a cost with RetryAfter wait, in a batch that began at
// that step. The refusal is believed for up to so many microseconds.
func (b *blocked) remember(id rowKey, view *algorithm.View, cost int64, wait time.Duration, began, believed int64) {
	if b == nil || wait <= 0 || wait == ratelimit.Never {
		return
	}
	now := b.clock()
	micros := int64(wait / time.Microsecond)
	r := &blockedRow{view: *view, cost: cost, passes: view.Now + micros, at: now, trusted: now + micros}
	if micros > believed {
		r.trusted = now + believed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cleared[b.slot(id)] > began {
		return
	}
	if len(b.rows) >= b.max {
		b.makeRoom(now)
	}
	id.key = strings.Clone(id.key) // the key may be a part of a long request
	b.rows[id] = r
	if end := r.end(); end > b.last {
		b.last = end
	}
}

// makeRoom deletes the ended rows among a few, or else any row. Iteration over a map
// starts at random. The caller holds the mutex.
func (b *blocked) makeRoom(now int64) {
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

// clear forgets a row to which quota was given back.
func (b *blocked) clear(id rowKey) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleared[b.slot(id)] = atomic.AddInt64(&b.step, 1)
	delete(b.rows, id)
}

// size is how many rows are remembered.
func (b *blocked) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rows) > 0 && b.clock() >= b.last {
		b.rows = map[rowKey]*blockedRow{}
	}
	return len(b.rows)
}
