package ratelimit

import (
	"context"
	"strings"
	"sync"
	"time"
)

// Memory is a Store in this process: the same steps without a database. Its
// counts end with the process and are shared with nobody.
type Memory struct {
	now     func() int64
	maxKeys int
	steps   int // of each sweep

	mu     sync.Mutex
	rows   map[rowKey]*row
	closed bool
}

// DefaultMemoryKeys is how many keys a Memory holds by default: at about 200
// bytes each, some 200 MB.
const DefaultMemoryKeys = 1000000

// NewMemory returns an empty store for up to maxKeys keys; 0 means
// DefaultMemoryKeys. Beyond it a new key displaces an expired one, or else any,
// whose quota is then full again. now gives the time in microseconds since the
// Unix epoch; nil is this machine's clock.
func NewMemory(maxKeys int, now func() int64) *Memory {
	if maxKeys <= 0 {
		maxKeys = DefaultMemoryKeys
	}
	if now == nil {
		now = unixMicro
	}
	return &Memory{now: now, maxKeys: maxKeys, steps: sweepSteps, rows: map[rowKey]*row{}}
}

func unixMicro() int64 { return time.Now().UnixMicro() }

// Take implements Store. It never waits.
func (m *Memory) Take(ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	now := m.now()
	// Charge one after the other; at a refusal, put back what was charged.
	before := make([]row, len(hits))
	granted := make([]bool, len(hits))
	all := true
	for i := range hits {
		h := &hits[i]
		r := m.row(h, now)
		before[i] = *r
		granted[i] = charge(h, r, now)
		all = all && granted[i]
	}
	if !all {
		for i := len(hits) - 1; i >= 0; i-- {
			if granted[i] && hits[i].Cost > 0 {
				*m.row(&hits[i], now) = before[i]
			}
		}
	}
	for i := range hits {
		h := &hits[i]
		if granted[i] {
			decisions[i] = admitted(h.Limit, m.row(h, now), now, 0)
		} else {
			decisions[i] = refused(h.Limit, m.row(h, now), now, h.Cost, 0)
		}
		decisions[i].Source = FromMemory
		if (h.Cost <= 0 || h.Peek || !all) && m.row(h, now).blank() {
			delete(m.rows, m.key(h))
		}
	}
	m.sweep(now)
	return nil
}

// charge applies one hit to a row and reports whether it is allowed.
func charge(h *Hit, r *row, now int64) bool {
	a := algorithms[stepsOf(h.Limit)]
	switch {
	case h.Cost > capacity(h.Limit):
		return false
	case h.Peek:
		return fits(h.Limit, r, now, h.Cost)
	case h.Cost > 0:
		return a.take(h.Limit, r, now, 1, h.Cost) == 1
	case h.Cost < 0:
		a.refund(h.Limit, r, now, givenBack(h.Cost), nil)
		return true
	}
	return fits(h.Limit, r, now, 0)
}

// Reset implements Store.
func (m *Memory) Reset(ctx context.Context, timeout time.Duration, hits []Hit) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	for i := range hits {
		delete(m.rows, m.key(&hits[i]))
	}
	return nil
}

// Close implements Store.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.rows = nil
}

func (m *Memory) key(h *Hit) rowKey { return rowKey{h.Limit.Durable, h.Limit.Prefix, h.storedKey()} }

// row returns a hit's row, made if missing. The caller holds the mutex.
func (m *Memory) row(h *Hit, now int64) *row {
	k := m.key(h)
	r := m.rows[k]
	if r == nil {
		if len(m.rows) >= m.maxKeys {
			m.displace(now)
		}
		r = &row{}
		k.key = strings.Clone(k.key) // it may be a part of a long request
		m.rows[k] = r
	}
	return r
}

// sweepSteps is how many rows each decision looks at to find expired ones: more
// than it can add, so that the expired never pile up.
const sweepSteps = 4

// sweep deletes expired rows among a few. Iteration over a map starts at random.
func (m *Memory) sweep(now int64) {
	steps := 0
	for k, r := range m.rows {
		if steps++; steps > m.steps {
			return
		}
		if r.expires <= now {
			delete(m.rows, k)
		}
	}
}

// displace makes room for one row.
func (m *Memory) displace(now int64) {
	var any rowKey
	steps := 0
	for k, r := range m.rows {
		any = k
		if r.expires <= now {
			break
		}
		if steps++; steps >= 16 {
			break
		}
	}
	delete(m.rows, any)
}

// givenBack is what a cost below 0 gives back. No quota is larger than
// MaxEvents, and so bounded, sums of it fit.
func givenBack(cost int64) int64 {
	if cost < -MaxEvents {
		return MaxEvents
	}
	return -cost
}
