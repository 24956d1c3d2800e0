package ratelimit

import (
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
// row here; made elsewhere it is noticed within trust.
type blocked struct {
	max int

	mu   sync.Mutex
	rows map[rowKey]blockedRow
}

type blockedRow struct {
	limit *Limit
	row   row
	now   int64     // the server's time at the refusal
	at    time.Time // this process's
	until time.Time
}

// trust is how long a refusal is believed at most.
const trust = time.Second

func newBlocked(max int) *blocked { return &blocked{max: max, rows: map[rowKey]blockedRow{}} }

// anyBlocked reports whether any row is remembered.
func anyBlocked(b *blocked) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	n := len(b.rows)
	b.mu.Unlock()
	return n > 0
}

// refuses reports whether a hit is known not to fit, and the decision then.
func refuses(b *blocked, id rowKey, l *Limit, cost int64, now time.Time) (Decision, bool) {
	b.mu.Lock()
	known, ok := b.rows[id]
	if ok && !now.Before(known.until) {
		delete(b.rows, id)
		ok = false
	}
	b.mu.Unlock()
	if !ok {
		return Decision{}, false
	}
	serverNow := known.now + int64(now.Sub(known.at)/time.Microsecond)
	if !sameLimit(l, known.limit) || fits(l, &known.row, serverNow, cost) {
		return Decision{}, false
	}
	d := refused(l, &known.row, serverNow, cost, 0)
	d.Source = FromBlocked
	return d, true
}

// note remembers a row that refused a hit which would pass at retry.
func (b *blocked) note(id rowKey, l *Limit, r row, serverNow int64, retry time.Duration, now time.Time) {
	if retry > trust {
		retry = trust
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rows) >= b.max {
		b.makeRoom(now)
	}
	b.rows[id] = blockedRow{limit: l, row: r, now: serverNow, at: now, until: now.Add(retry)}
}

// makeRoom deletes the expired among a few rows, or else any one. Iteration over
// a map starts at random. The caller holds the mutex.
func (b *blocked) makeRoom(now time.Time) {
	steps := 0
	for id, known := range b.rows {
		if steps++; steps > 16 {
			break
		}
		if !now.Before(known.until) {
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
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.rows, id)
}

// size is how many rows are remembered.
func (b *blocked) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.rows)
}
