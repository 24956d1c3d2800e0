package ratelimit

import (
	"fmt"
	"time"
)

// Row is a row's state, for tests that compare it with the table's.
type Row struct {
	Count, PrevCount, Start int64
	Tokens                  float64
	HasTokens               bool
	Refill, Remainder       int64
	Hits                    string
	Expires                 int64
}

// KeepExpired turns sweeping off: a clock that steps back finds every row.
func (m *Memory) KeepExpired() { m.steps = 0 }

// RowOf returns a key's row, or false.
func (m *Memory) RowOf(h Hit) (Row, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rows[m.key(&h)]
	if r == nil {
		return Row{}, false
	}
	return Row{r.count, r.prevCount, r.start, r.tokens, r.hasTokens, r.refill, r.remainder, fmt.Sprint(r.hits), r.expires}, true
}

// WithoutBlocked asks the database about every hit.
const WithoutBlocked = -1

// Request is one call of a batch that RunBatch decides.
type Request struct {
	Hits      []Hit
	Decisions []Decision
	Err       error
}

// RunBatch decides requests in one batch, and the batches that follow from it.
func (p *Postgres) RunBatch(requests []*Request) {
	l, err := p.lane(10 * time.Second)
	if err != nil {
		panic(err)
	}
	var calls []*call
	for _, r := range requests {
		c := newCall(r.Hits, false)
		c.deadline = time.Now().Add(10 * time.Second)
		c.done.Add(1)
		calls = append(calls, c)
	}
	for batch := append([]*call(nil), calls...); len(batch) > 0; {
		batch = l.runSafely(batch)
	}
	for i, r := range requests {
		r.Decisions, r.Err = calls[i].decisions, calls[i].err
	}
}
