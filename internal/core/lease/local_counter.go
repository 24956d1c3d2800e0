package lease

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// LocalCounter holds what a row held after the last decision of the database, or this process's share of
// that, see ShareOf. The mutex of the stripe guards all fields, except that the callers of ShareOf guard Row
// of a share.
type LocalCounter struct {
	Row       algorithm.Row
	decidedAt int64 // the server's time of the decision; 0 before the first
	isShare   bool
	owes      bool          // see SetOwes
	uncertain bool          // see SetUncertain
	earlier   *LocalCounter // the uncertain share that the last decision replaced, or nil
}

const (
	// localFactor is the factor by which KeepLocal raises the bound on the rows without a lease.
	localFactor = 5

	// maxSpared bounds the rows that evictCached spares because they owe.
	maxSpared = 100
)

// KeepLocal sets Set.Local. The Set then has room for localFactor times as many rows without a lease.
func KeepLocal(s *Set) { atomic.StoreInt32(&s.Local, 1) }

// RowView describes what a row held at the server's time View.Now.
type RowView struct {
	ID   RowID
	View *algorithm.View
}

// KeepRows remembers what rows held after statements. A row that owes keeps its share. The caller checks
// Set.Local. KeepRows is one loop, because calls are expensive in Yaegi.
func KeepRows(s *Set, views []RowView) {
	now := Now(s)
	for i := range views {
		h := &views[i]
		hash := s.Hash(s.Seed, h.ID.Key)
		stripe := s.Stripes[hash%StripeCount]
		stripe.Mu.Lock()
		r := stripe.Rows[h.ID]
		if r == nil {
			r = addCached(s, stripe, h.ID, hash)
		}
		if r.local == nil {
			r.local = &LocalCounter{}
		}
		// A batch that is answered late has an older row. After a jump of Trust, the server's clock was set
		// back.
		if late := r.local.decidedAt - h.View.Now; late <= 0 || late >= Trust {
			atomic.StoreInt64(&s.serverOffset, h.View.Now-now)
			if r.local.owes {
				stripe.Mu.Unlock()
				continue
			}
			if share := r.local; share.isShare {
				r.local = &LocalCounter{}
				if share.uncertain {
					r.local.earlier = share
				}
			}
			r.local.Row = h.View.Row
			r.local.decidedAt = h.View.Now
		}
		stripe.Mu.Unlock()
	}
}

// ShareOf makes the LocalCounter of a row this process's share, one of a number of parts, unless it is one
// already. It returns the share, which local decisions change. Its callers share a mutex, which guards the
// shares. The next decision of the database gives the row another LocalCounter, unless the row owes. The
// share of a row without a LocalCounter is blank. If an earlier share is uncertain and has less quota left at
// the server's time now, it becomes the share again. l is the share of the limit.
func ShareOf(s *Set, id RowID, parts float64, l *ratelimit.Limit, now int64) *LocalCounter {
	var share *LocalCounter
	withCached(s, id, true, func(r *Cached) {
		if r.local == nil {
			r.local = &LocalCounter{}
		}
		share = r.local
		if share.isShare {
			return
		}
		share.isShare = true
		algorithm.ShareRow(&share.Row, parts)
		if earlier := share.earlier; earlier != nil {
			share.earlier = nil
			left, _ := algorithm.Of(l).Peek(l, &share.Row, now)
			if less, _ := algorithm.Of(l).Peek(l, &earlier.Row, now); less < left {
				share = earlier
				r.local = earlier
			}
		}
	})
	return share
}

// SetOwes sets whether a row owes, which means that the database lacks charges of its share. The row then
// keeps the share, Owes reports it, its lease gets no units, and other rows are evicted first.
func SetOwes(s *Set, id RowID, share *LocalCounter, on bool) {
	withCached(s, id, on, func(r *Cached) {
		if on {
			r.local = share // a decision may have replaced it
		}
		if r.local == share {
			setOwes(s, share, on)
		}
	})
}

// setOwes sets LocalCounter.owes. The caller holds the mutex of the stripe.
func setOwes(s *Set, share *LocalCounter, on bool) {
	if on && !share.owes {
		atomic.AddInt64(&s.OwingCount, 1)
	} else if share.owes && !on {
		atomic.AddInt64(&s.OwingCount, -1)
	}
	share.owes = on
}

// Owes reports whether a row owes.
func Owes(s *Set, r *Cached) bool {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	return owes(r)
}

// owes is Owes for a caller that holds the mutex of the stripe.
func owes(r *Cached) bool { return r.local != nil && r.local.owes }

// SetUncertain records that the database may lack charges of a share for ever. The next share of the row then
// has no more quota than this one.
func SetUncertain(s *Set, id RowID, share *LocalCounter) {
	withCached(s, id, false, func(r *Cached) {
		share.uncertain = true
		if r.local != nil && r.local != share && !r.local.isShare {
			r.local.earlier = share
		}
	})
}

// ServerNow returns the server's time in microseconds, which never goes back between two calls of KeepRows.
// Before the first call, it is the time of this machine.
func ServerNow(s *Set) int64 { return Now(s) + atomic.LoadInt64(&s.serverOffset) }
