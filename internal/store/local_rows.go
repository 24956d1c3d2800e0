package store

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// maxRows bounds the rows that are remembered, at about 300 bytes each.
const maxRows = 50000

// row holds a row after the database's last decision, or after the last decision at this process's share.
type row struct {
	id        lease.RowID
	row       algorithm.Row
	decidedAt int64 // the server's time of the decision
	isShare   bool  // row has been divided into shares
	slots     int64 // the slots that requests hold of the share; atomic
	debt      *debt // the debt of the share, or nil
}

// clock returns this machine's time in microseconds. It never goes back.
func (s *Shares) clock() int64 { return s.born.Add(time.Since(s.born)).UnixMicro() }

// serverTime returns the server's time in microseconds. The caller holds the mutex.
func (s *Shares) serverTime() int64 {
	if s.now != nil {
		return s.now().UnixMicro()
	}
	return s.clock() + s.clockOffset
}

// Enabled implements engine.RowObserver.
func (s *Shares) Enabled() bool { return atomic.LoadInt32(&s.remembering) != 0 }

// Observe implements engine.RowObserver. It is one loop, with the frequent case inline, for Yaegi.
func (s *Shares) Observe(rows []engine.Row) {
	now := s.clock()
	s.mu.Lock()
	for i := range rows {
		view := rows[i].View
		r := s.rows[rows[i].ID]
		if r == nil {
			r = s.add(rows[i].ID)
		}
		if late := r.decidedAt - view.Now; late > 0 && late < lease.Trust {
			continue // several batches may be under way
		}
		r.row = view.Row
		r.decidedAt = view.Now
		r.isShare = false
		s.clockOffset = view.Now - now
	}
	s.mu.Unlock()
}

// rowOf returns a row, which may be new. The caller holds the mutex.
func (s *Shares) rowOf(id lease.RowID) *row {
	if r := s.rows[id]; r != nil {
		return r
	}
	return s.add(id)
}

// add adds a row, and evicts another if there are too many. The caller holds the mutex.
func (s *Shares) add(id lease.RowID) *row {
	if len(s.rows) >= maxRows {
		tries := 0
		for other, r := range s.rows { // in random order
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

// count counts a decision at one of parts shares of each limit. The caller holds the mutex.
func (s *Shares) count(parts float64, admitted bool) {
	now := time.Now()
	if !s.state.On {
		s.state = registry.Local{On: true, Since: now}
	}
	s.state.Last = now
	s.state.Parts = parts
	if admitted {
		s.state.Admitted++
	} else {
		s.state.Refused++
	}
}

// holdSlots passes the slots of an admitted hit to its Slot.
func (r *row) holdSlots(h *ratelimit.Hit) {
	cost := h.Cost
	atomic.AddInt64(&r.slots, cost)
	h.Slot.Hold(func() { atomic.AddInt64(&r.slots, -cost) })
}
