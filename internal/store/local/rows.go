package local

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// maxRows bounds the rows that are remembered, at about 300 bytes each.
const maxRows = 50000

// row is the state of a row after the last decision of the database, or the share of this process.
type row struct {
	id     lease.RowID
	row    algorithm.Row
	now    int64 // the server's time of the decision
	shared bool  // row is the share
	slots  int64 // that requests hold of the share, on a limit InFlight; atomic
	debt   *debt // the last one; nil is none
}

// clock is this machine's time in microseconds. It never goes back.
func (s *Shares) clock() int64 { return s.born.Add(time.Since(s.born)).UnixMicro() }

// serverTime is the server's time in microseconds. The caller holds the mutex.
func (s *Shares) serverTime() int64 {
	if s.now != nil {
		return s.now().UnixMicro()
	}
	return s.clock() + s.ahead
}

// Wanted implements engine.Rows.
func (s *Shares) Wanted() bool { return atomic.LoadInt32(&s.on) != 0 }

// Learn implements engine.Rows. It is one loop, with what most
// rows need inline, because the plugin is interpreted: see internal/testkit/imports.
func (s *Shares) Learn(rows []engine.Row) {
	now := s.clock()
	s.mu.Lock()
	for i := range rows {
		view := rows[i].View
		r := s.rows[rows[i].ID]
		if r == nil {
			r = s.add(rows[i].ID)
		}
		if late := r.now - view.Now; late > 0 && late < lease.Trust {
			continue // several batches may be under way
		}
		r.row = view.Row
		r.now = view.Now
		r.shared = false
		s.ahead = view.Now - now
	}
	s.mu.Unlock()
}

// of returns a row, which may be new. The caller holds the mutex.
func (s *Shares) of(id lease.RowID) *row {
	if r := s.rows[id]; r != nil {
		return r
	}
	return s.add(id)
}

// add adds a row. The caller holds the mutex.
func (s *Shares) add(id lease.RowID) *row {
	if len(s.rows) >= maxRows {
		tries := 0
		for other, r := range s.rows { // from a random one on
			if tries++; r.debt == nil || tries > 16 {
				delete(s.rows, other)
				break
			}
		}
	}
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	r := &row{id: id}
	s.rows[id] = r
	return r
}

// count counts a decision at one of so many parts. The caller holds the mutex.
func (s *Shares) count(parts float64, admitted bool) {
	now := time.Now()
	if !s.state.On {
		s.state = State{On: true, Since: now}
	}
	s.state.Last = now
	s.state.Parts = parts
	if admitted {
		s.state.Admitted++
	} else {
		s.state.Refused++
	}
}

// hold transfers the slots of a hit that was admitted to its Slot.
func (r *row) hold(h *ratelimit.Hit) {
	cost := h.Cost
	atomic.AddInt64(&r.slots, cost)
	h.Slot.Hold(func() { atomic.AddInt64(&r.slots, -cost) })
}
