package store

import (
	"math"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// After an outage, the units that were admitted on durable limits are charged. Each debt is charged by one
// call, which is retried only if it certainly had no effect. A charge with an unknown outcome counts as lost.

// maxUnpaid bounds the debts. A row can have one for each outage.
const maxUnpaid = 10000

// debt holds the units that a row of a durable limit has admitted during an outage, until they are charged.
type debt struct {
	row           *row
	subject       string // the subject of the hits
	limit         *ratelimit.Limit
	charge        int64
	share         ratelimit.Limit // the share of limit at the last hit
	shareUsed     int64           // how many units of the share the hits that make up charge took
	before, after algorithm.Row   // the share's row before the first hit and after the last one
}

// addDebt adds the cost of a hit to the debt of its row. shareHit is the same hit on this process's share of
// the limit, and before is the share's row before shareHit. The caller holds the mutex.
func (s *Store) addDebt(r *row, h, shareHit *ratelimit.Hit, before *algorithm.Row, now int64) {
	d := r.debt
	switch {
	case d != nil && d.remaining(now) == 0: // such as a debt of an earlier window
		d.charge = 0
		d.shareUsed = 0
		d.before = *before
	case d == nil:
		if len(s.unpaid) >= maxUnpaid {
			s.local.Lost += h.Cost
			return
		}
		d = &debt{row: r, subject: r.id.Key, before: *before}
		if h.Subject != "" {
			d.subject = strings.Clone(h.Subject) // it may be a part of a long request
		}
		r.debt = d
		s.unpaid = append(s.unpaid, d)
	}
	d.limit = h.Limit
	d.charge += h.Cost
	d.share = *shareHit.Limit
	d.shareUsed += shareHit.Cost
	d.after = r.row
}

// remaining returns the part of a debt that still counts. The part shrinks as the share regains quota, and is
// 0 after the window of the hits has ended.
func (d *debt) remaining(now int64) int64 {
	left := usedQuota(&d.share, &d.after, now) - usedQuota(&d.share, &d.before, now)
	switch {
	case left <= 0:
		return 0
	case left >= d.shareUsed:
		return d.charge
	}
	return int64(math.Ceil(float64(d.charge) * float64(left) / float64(d.shareUsed)))
}

// usedQuota returns the used units of a row's quota.
func usedQuota(l *ratelimit.Limit, r *algorithm.Row, now int64) int64 {
	free, _ := algorithm.Of(l).Peek(l, r, now)
	return l.Capacity() - free
}

// ChargeDebts charges the debts to the shards that answer. It charges only the part of a debt that still
// counts.
func (s *Store) ChargeDebts() {
	var charged, left []*debt
	var engines []*engine.Store // of charged
	s.mu.Lock()
	now := s.serverTime()
	for _, d := range s.unpaid {
		e := s.Engine(d.subject)
		if e == nil || e.Unavailable() != nil {
			left = append(left, d)
			continue
		}
		if d.charge = d.remaining(now); d.charge > 0 {
			s.charging += d.charge
			charged = append(charged, d)
			engines = append(engines, e)
		}
		if d.row.debt == d {
			d.row.debt = nil
		}
	}
	s.unpaid = left
	s.mu.Unlock()
	for i, d := range charged {
		engines[i].Charge(d.row.id, d.limit, d.charge)
	}
}

// Charged implements engine.RowObserver.
func (s *Store) Charged(units, done int64, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charging -= units
	s.local.Charged += done
	if lost {
		s.local.Lost += units
	} else {
		s.local.Unfit += units - done
	}
}
