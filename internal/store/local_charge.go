package store

import (
	"math"
	"strings"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// After an outage, the units that were admitted on durable limits are charged. Each debt is charged by one
// call, which is retried only if it certainly had no effect. A charge with an unknown outcome counts as lost.

// maxDebts bounds the debts. A row can have one for each outage.
const maxDebts = 10000

// debt holds the units that a row of a durable limit has admitted during an outage, until they are charged.
type debt struct {
	key, subject  string
	engine        *engine.Store // charges the debt; nil before ChargeDebts
	limit         *ratelimit.Limit
	charge        int64           // the units to charge
	share         ratelimit.Limit // the share of limit at the last hit
	shareUsed     int64           // the units of the share that the hits of charge used
	before, after algorithm.Row   // the share's row before the first hit and after the last one
}

// addDebt adds the cost of a hit to the debt of a share. shareHit is the same hit on this process's share of
// the limit, and before is the share's row before shareHit. The caller holds the mutex.
func (s *Store) addDebt(share *lease.State, h, shareHit *ratelimit.Hit, before *algorithm.Row, now int64) {
	d := s.debts[share]
	switch {
	case d != nil && d.remaining(now) == 0: // such as a debt of an earlier window
		d.charge = 0
		d.shareUsed = 0
		d.before = *before
	case d == nil:
		if len(s.debts) >= maxDebts {
			s.local.Lost += h.Cost
			return
		}
		// The texts may be parts of a long request.
		d = &debt{key: strings.Clone(h.StoredKey()), subject: strings.Clone(subjectOf(h)), before: *before}
		s.debts[share] = d
		atomic.StoreInt32(&share.Owed, 1)
	}
	d.limit = h.Limit
	d.charge += h.Cost
	d.share = *shareHit.Limit
	d.shareUsed += shareHit.Cost
	d.after = share.Row
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
	var due []*debt
	s.mu.Lock()
	for share, d := range s.debts {
		e := s.Engine(d.subject)
		if e == nil || e.Unavailable() != nil {
			continue
		}
		if d.charge = d.remaining(s.serverTime(e)); d.charge > 0 {
			s.charging += d.charge
			d.engine = e
			due = append(due, d)
		}
		delete(s.debts, share)
		atomic.StoreInt32(&share.Owed, 0)
	}
	s.mu.Unlock()
	for _, d := range due {
		s.chargeDebt(d)
	}
}

// chargeDebt charges the units of a debt in the background.
func (s *Store) chargeDebt(d *debt) {
	d.engine.Charge(d.limit, d.key, d.charge, func(charged int64, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.charging -= d.charge
		s.local.Charged += charged
		if err != nil {
			s.local.Lost += d.charge
		} else {
			s.local.Unfit += d.charge - charged
		}
	})
}
