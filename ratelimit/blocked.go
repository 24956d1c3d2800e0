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
	max    int
	born   time.Time
	clears *clears

	mu   sync.Mutex
	rows map[rowKey]*blockedRow
	last int64 // from when on all rows have expired
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

func newBlocked(max int, c *clears) *blocked {
	return &blocked{max: max, born: time.Now(), clears: c, rows: map[rowKey]*blockedRow{}}
}

// clock is how long b has lived, in microseconds.
func (b *blocked) clock() int64 { return int64(time.Since(b.born) / time.Microsecond) }

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

// learn returns what is to be noted of the row of a call's ith hit, which has just
// been decided, or nil: of a refusal that is final whatever the row holds, or for
// the sake of what is given back, nothing is.
func (b *blocked) learn(c *Call, i int) *blockedRow {
	it := c.places[i].item
	retry := c.Decisions[i].RetryAfter
	if it.kind != take || it.given != 0 || retry == Never || granted(c, i) {
		return nil
	}
	wait := int64(retry / time.Microsecond)
	now := b.clock()
	return &blockedRow{limit: it.limit, row: it.row, now: it.now, cost: it.cost, passes: it.now + wait, at: now, until: now + smaller(wait, trust)}
}

// note remembers a row that refused a hit of a batch which began then, unless the
// row has been cleared since.
func (b *blocked) note(id rowKey, known *blockedRow, began int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.clears.mayBeAfter(id, began) {
		return
	}
	if len(b.rows) >= b.max {
		b.makeRoom(b.clock())
	}
	id.key = strings.Clone(id.key) // it may be a part of a long request
	b.rows[id] = known
	b.last = larger(b.last, known.until)
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

// forget forgets a row whose quota was given back. That is in clears before, so
// that nobody notes it again.
func (b *blocked) forget(id rowKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
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
