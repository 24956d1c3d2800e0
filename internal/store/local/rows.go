package local

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// maxRows bounds the rows that are remembered, at about 300 bytes each.
const maxRows = 50000

// Rows are the rows that a Shares remembers. They are engine.Rows for the stores that decide.
type Rows struct {
	on   int32 // 1 once rows are remembered; atomic
	born time.Time
	now  func() time.Time // replaces the server's clock, or nil

	mu       sync.Mutex // guards all that follows
	rows     map[lease.RowID]*row
	ahead    int64 // the server's clock less that of this process, in microseconds
	unpaid   []*debt
	charging int64 // units of charges under way
	state    State
}

// row is a row as the database decided last, or what this process has made of its share since.
type row struct {
	id     lease.RowID
	row    algorithm.Row
	now    int64 // the server's time of the decision
	shared bool  // row is the share
	slots  int64 // that requests hold of the share, on a limit InFlight; atomic
	debt   *debt // the last one; nil is none
}

// NewRows returns no rows. now replaces the server's clock, for tests; nil does not.
func NewRows(now func() time.Time) *Rows {
	return &Rows{born: time.Now(), now: now, rows: map[lease.RowID]*row{}}
}

// clock is this machine's time in microseconds. It never goes back.
func (k *Rows) clock() int64 { return k.born.Add(time.Since(k.born)).UnixMicro() }

// serverTime is the server's time in microseconds. The caller holds the mutex.
func (k *Rows) serverTime() int64 {
	if k.now != nil {
		return k.now().UnixMicro()
	}
	return k.clock() + k.ahead
}

// Wanted implements engine.Rows.
func (k *Rows) Wanted() bool { return atomic.LoadInt32(&k.on) != 0 }

// Learn implements engine.Rows. It is one loop, with what most
// rows need inline, because the plugin is interpreted: see internal/testkit/imports.
func (k *Rows) Learn(rows []engine.Row) {
	now := k.clock()
	k.mu.Lock()
	for i := range rows {
		view := rows[i].View
		r := k.rows[rows[i].ID]
		if r == nil {
			r = k.add(rows[i].ID)
		}
		if late := r.now - view.Now; late > 0 && late < lease.Trust {
			continue // several batches may be under way
		}
		r.row = view.Row
		r.now = view.Now
		r.shared = false
		k.ahead = view.Now - now
	}
	k.mu.Unlock()
}

// of returns a row, which may be new. The caller holds the mutex.
func (k *Rows) of(id lease.RowID) *row {
	if r := k.rows[id]; r != nil {
		return r
	}
	return k.add(id)
}

// add adds a row. The caller holds the mutex.
func (k *Rows) add(id lease.RowID) *row {
	if len(k.rows) >= maxRows {
		tries := 0
		for other, r := range k.rows { // from a random one on
			if tries++; r.debt == nil || tries > 16 {
				delete(k.rows, other)
				break
			}
		}
	}
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	r := &row{id: id}
	k.rows[id] = r
	return r
}

// count counts a decision at one of so many parts. The caller holds the mutex.
func (k *Rows) count(parts float64, admitted bool) {
	now := time.Now()
	if !k.state.On {
		k.state = State{On: true, Since: now}
	}
	k.state.Last = now
	k.state.Parts = parts
	if admitted {
		k.state.Admitted++
	} else {
		k.state.Refused++
	}
}

// hold gives a hit that was admitted its slots of the share.
func (r *row) hold(h *ratelimit.Hit) {
	cost := h.Cost
	atomic.AddInt64(&r.slots, cost)
	h.Slot.Hold(func() { atomic.AddInt64(&r.slots, -cost) })
}
