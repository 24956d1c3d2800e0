package lease

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
)

// State holds what a row held after the last decision of the database, or this process's share of that, see
// ShareOf. The mutex of the stripe guards a State until it is a share.
type State struct {
	Row       algorithm.Row
	Owed      int32 // 1 while the database lacks charges of Row, so that other rows are evicted first; atomic
	decidedAt int64 // the server's time of the decision; 0 before the first
	isShare   bool
}

const (
	// statesFactor is the factor by which KeepStates raises the bound on the rows without a lease.
	statesFactor = 5

	// maxSpared bounds the rows that evictRows spares because of State.Owed.
	maxSpared = 100
)

// KeepStates sets Set.States. The Set then has room for statesFactor times as many rows without a lease.
func KeepStates(s *Set) { atomic.StoreInt32(&s.States, 1) }

// Held describes what a row held at the server's time View.Now.
type Held struct {
	ID   RowID
	View *algorithm.View
}

// KeepRows remembers what rows held after statements. The caller checks Set.States. KeepRows is one loop,
// because calls are expensive in Yaegi.
func KeepRows(s *Set, held []Held) {
	now := Now(s)
	for i := range held {
		h := &held[i]
		hash := s.Hash(s.Seed, h.ID.Key)
		stripe := s.Stripes[hash%StripeCount]
		stripe.Mu.Lock()
		r := stripe.Rows[h.ID]
		if r == nil {
			r = addRow(s, stripe, h.ID, hash)
		}
		if r.state == nil {
			r.state = &State{}
		}
		// A batch that is answered late has an older row. After a jump of Trust, the server's clock was set
		// back.
		if late := r.state.decidedAt - h.View.Now; late <= 0 || late >= Trust {
			if r.state.isShare {
				r.state = &State{}
			}
			r.state.Row = h.View.Row
			r.state.decidedAt = h.View.Now
			atomic.StoreInt64(&s.serverOffset, h.View.Now-now)
		}
		stripe.Mu.Unlock()
	}
}

// ShareOf makes the State of a row this process's share, one of a number of parts, unless it is one already.
// It returns the share, which local decisions change. Its callers share a mutex, which guards the shares. The
// next decision of the database gives the row another State. The share of a row without a State is blank.
func ShareOf(s *Set, id RowID, parts float64) *State {
	var share *State
	withRow(s, id, true, func(_ *Stripe, r *Row) {
		if r.state == nil {
			r.state = &State{}
		}
		share = r.state
		if !share.isShare {
			share.isShare = true
			algorithm.ShareRow(&share.Row, parts)
		}
	})
	return share
}

// ServerNow returns the server's time in microseconds, which never goes back between two calls of KeepRows.
// Before the first call, it is the time of this machine.
func ServerNow(s *Set) int64 { return Now(s) + atomic.LoadInt64(&s.serverOffset) }
