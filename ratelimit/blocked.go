package ratelimit

import (
	"strings"
	"sync"
	"time"
)

// blocked remembers rows that refused a hit. While somebody hammers a limit that
// is used up, the answer is known: others can only have taken more since. So a
// cost that did not fit into the row as it was then, at the time that it is now,
// is refused without asking, with the same RetryAfter as the database would give
// if nobody else had come. A smaller cost that would fit is asked about.
//
// Only a refund or a reset can prove it wrong: made in this process it clears the
// row here, also of a refusal whose answer is still on its way; made elsewhere it
// is noticed within trust.
type blocked struct {
	max  int
	born time.Time

	mu     sync.Mutex
	rows   map[rowKey]*blockedRow
	last   int64 // from when on all rows have expired
	clears map[rowKey]int64
	since  int64 // of a batch that began before it, any row may have been cleared
}

// blockedRow does not change. at and until are by the clock of blocked.
type blockedRow struct {
	limit  *Limit
	row    row
	now    int64 // the server's time at the refusal
	cost   int64 // what was refused
	passes int64 // the server's time at which that cost would pass
	at     int64
	until  int64
}

// trust is how long a refusal is believed at most.
const trust = int64(time.Second / time.Microsecond)

// maxClears bounds the rows of which it is known when they were cleared.
const maxClears = 1000

func newBlocked(max int) *blocked {
	return &blocked{max: max, born: time.Now(), rows: map[rowKey]*blockedRow{}, clears: map[rowKey]int64{}}
}

// clock is how long b has lived, in microseconds.
func (b *blocked) clock() int64 { return int64(time.Since(b.born) / time.Microsecond) }

// clockOf is the clock of b, if there is one.
func clockOf(b *blocked) int64 {
	if b == nil {
		return 0
	}
	return b.clock()
}

// anyBlocked reports whether any row is remembered.
func anyBlocked(b *blocked) bool { return b != nil && b.size() > 0 }

// refuses reports whether a hit is known not to fit, and the decision then.
func refuses(b *blocked, id rowKey, l *Limit, cost, now int64) (Decision, bool) {
	b.mu.Lock()
	known := b.rows[id]
	if known != nil && now >= known.until {
		delete(b.rows, id)
		known = nil
	}
	b.mu.Unlock()
	if known == nil {
		return Decision{}, false
	}
	serverNow := known.now + now - known.at
	if !sameLimit(l, known.limit) || fits(l, &known.row, serverNow, cost) {
		return Decision{}, false
	}
	d := refused(l, &known.row, serverNow, cost, 0)
	d.Source = FromBlocked
	return d, true
}

// known returns the rows that refuse calls of one hit, for many calls at once: as
// items as of now, each with the call that it refuses and the time at which that
// would pass. A cost other than the one that the row refused is left out.
func (b *blocked) known(calls []*Call) ([]*item, []*Call, []int64) {
	now := b.clock()
	items := make([]*item, len(calls))
	refused := make([]*Call, len(calls))
	passes := make([]int64, len(calls))
	n := 0
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range calls {
		if len(c.Hits) != 1 || c.unusual || c.Err != nil {
			continue
		}
		h := &c.Hits[0]
		row := b.rows[rowKey{h.Limit.Durable, h.Limit.Prefix, h.Key}]
		if row == nil || row.limit != h.Limit || row.cost != h.Cost || now >= row.until {
			continue
		}
		serverNow := row.now + now - row.at
		if serverNow >= row.passes {
			continue
		}
		items[n] = &item{limit: row.limit, row: row.row, now: serverNow}
		refused[n] = c
		passes[n] = row.passes
		n++
	}
	return items[:n], refused[:n], passes[:n]
}

// note remembers a row that refused a cost which would pass after retry, in a
// batch that began then, unless the row has been cleared since.
func (b *blocked) note(id rowKey, l *Limit, r row, serverNow, cost int64, retry time.Duration, began int64) {
	wait := int64(retry / time.Microsecond)
	if retry == Never {
		return // whatever the row holds
	}
	now := b.clock()
	known := &blockedRow{limit: l, row: r, now: serverNow, cost: cost, passes: serverNow + wait, at: now, until: now + smaller(wait, trust)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.clearedSince(id, began) {
		return
	}
	if len(b.rows) >= b.max {
		b.makeRoom(now)
	}
	id.key = strings.Clone(id.key) // it may be a part of a long request
	b.rows[id] = known
	b.last = larger(b.last, known.until)
}

// clearedSince reports whether a row may have been cleared since. The caller holds
// the mutex.
func (b *blocked) clearedSince(id rowKey, since int64) bool {
	cleared, ever := b.clears[id]
	return since < b.since || ever && since <= cleared
}

// wasCleared is clearedSince, for who does not hold the mutex, or has no b.
func wasCleared(b *blocked, id rowKey, since int64) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clearedSince(id, since)
}

// makeRoom deletes the expired among a few rows, or else any one. Iteration over
// a map starts at random. The caller holds the mutex.
func (b *blocked) makeRoom(now int64) {
	steps := 0
	for id, known := range b.rows {
		if steps++; steps > 16 {
			break
		}
		if now >= known.until {
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

// clear forgets a row whose quota was given back.
func (b *blocked) clear(id rowKey) {
	now := b.clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.rows, id)
	if len(b.clears) >= maxClears {
		b.clears = map[rowKey]int64{}
		b.since = now + 1
	}
	id.key = strings.Clone(id.key)
	b.clears[id] = now
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
