package store

import (
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// After an outage, the units that were admitted are charged. Each debt is charged by one call, which is
// retried only if it certainly had no effect. A charge with an unknown outcome counts as lost, and still
// counts in the share.
//
// A row that owes is decided at its share, even if the database answers, until a charge is answered and
// quietTime is over. Then its last hits are charged, together with the next hits that the database decides. A
// failure of the database in between begins the quiet time again.

const (
	// maxDebts bounds the debts in each of the two tables.
	maxDebts = 10000

	// checkInterval is the mean time between two checks of a server that is owed. It varies by a half, so
	// that proxies do not check together. In an outage, outageInterval is the time until the store sees that
	// the server answers again.
	checkInterval  = 250 * time.Millisecond
	outageInterval = 25 * time.Millisecond

	// quietTime is the time after a charge in which other proxies charge what they owe. It is the longest
	// time between two probes of a server that is down, see package health.
	quietTime = 750 * time.Millisecond
)

// debt holds the units that a row has admitted during an outage, until they are charged.
type debt struct {
	key, subject  string
	rows          *lease.Set // the Set of the row
	limit         *ratelimit.Limit
	units         int64           // the units to charge
	share         ratelimit.Limit // the share of limit at the last hit
	shareUsed     int64           // the units of the share that the hits of units used
	before, after algorithm.Row   // the share's row before the first hit of units and after the last one
	charging      bool            // a charge is in flight
	quietUntil    time.Time       // the end of the quiet time; 0 before a charge is answered
}

// addDebt adds the cost of a hit to the debt of a share. shareHit is the same hit on this process's share of
// the limit, and before is the share's row before shareHit. The row owes from now on if outage is set, and
// not if it has owed when the hit came. The caller holds the mutex.
func (s *Store) addDebt(share *lease.LocalCounter, h, shareHit *ratelimit.Hit, before *algorithm.Row,
	now int64, outage bool) {
	d := s.debts[share]
	switch {
	case d != nil && d.remaining(now) == 0: // such as a debt of an earlier window
		d.begin(before)
	case d == nil:
		if s.debtCount[h.Limit.Durable] >= maxDebts {
			s.local.Lost += h.Cost
			return
		}
		// The texts may be parts of a long request.
		d = &debt{key: strings.Clone(h.StoredKey()), subject: strings.Clone(subjectOf(h)),
			rows: s.Engine(subjectOf(h)).Rows()}
		d.begin(before)
		s.debts[share] = d
		s.debtCount[h.Limit.Durable]++
		if !s.repaying && !s.closed {
			s.repaying = true
			s.running.Add(1)
			go s.repay()
		}
	}
	d.limit = h.Limit
	d.units += h.Cost
	d.share = *shareHit.Limit
	d.shareUsed += shareHit.Cost
	d.after = share.Row
	if outage {
		lease.SetOwes(d.rows, lease.RowOf(d.limit, d.key), share, true)
	}
}

// begin makes a debt begin without units, at a row of the share.
func (d *debt) begin(row *algorithm.Row) {
	d.units = 0
	d.shareUsed = 0
	d.before = *row
}

// remaining returns the part of a debt that still counts. The part shrinks as the share regains quota, and is
// 0 after the window of the hits has ended.
func (d *debt) remaining(now int64) int64 {
	left := usedQuota(&d.share, &d.after, now) - usedQuota(&d.share, &d.before, now)
	switch {
	case left <= 0:
		return 0
	case left >= d.shareUsed:
		return d.units
	}
	return int64(math.Ceil(float64(d.units) * float64(left) / float64(d.shareUsed)))
}

// usedQuota returns the used units of a row's quota.
func usedQuota(l *ratelimit.Limit, r *algorithm.Row, now int64) int64 {
	free, _ := algorithm.Of(l).Peek(l, r, now)
	return l.Capacity() - free
}

// repay charges debts until none is left.
func (s *Store) repay() {
	defer s.running.Done()
	s.options.Report(batch.PanicError(func() {
		back := true // the database may have failed since the last check
		for s.closing.Err() == nil {
			interval := outageInterval
			if s.Unavailable() != nil || !s.Ready() { // or the engines are not found
				back = true
			} else {
				if !s.chargeDebts(s.check(back), back) {
					return
				}
				back = false
				interval = time.Duration((0.5 + s.options.Random()) * float64(checkInterval))
			}
			health.Sleep(s.closing, interval)
		}
	}))
}

// check returns which engines have a server that answers. If back is set, health has just asked the servers.
func (s *Store) check(back bool) map[*engine.Engine]bool {
	answers := map[*engine.Engine]bool{}
	timeout := time.Duration(atomic.LoadInt32(&s.timeout)) * time.Millisecond
	for _, e := range s.allEngines() {
		answers[e] = e.Unavailable() == nil && (back || e.Health().Answers(timeout))
	}
	return answers
}

// chargeDebts charges the debts that are due to the engines that answer, and reports whether any debt is
// left. If back is set, all quiet times begin again.
func (s *Store) chargeDebts(answers map[*engine.Engine]bool, back bool) bool {
	var due []*charge
	s.mu.Lock()
	for share, d := range s.debts {
		e := s.Engine(d.subject)
		if back || !answers[e] {
			d.quietUntil = time.Time{}
		}
		if !answers[e] {
			continue
		}
		if c := s.dueOf(share, d, e); c != nil {
			due = append(due, c)
		}
	}
	s.repaying = len(s.debts) > 0
	repaying := s.repaying
	s.mu.Unlock()
	for _, c := range due {
		s.chargeDebt(c)
	}
	return repaying
}

// charge is a charge of a debt.
type charge struct {
	debt   *debt
	share  *lease.LocalCounter
	engine *engine.Engine
	limit  *ratelimit.Limit
	units  int64
	last   bool // the row owes nothing afterwards
}

// dueOf returns the charge that a debt is due, or nil. Only the part of a debt that still counts is charged.
// The caller holds the mutex.
func (s *Store) dueOf(share *lease.LocalCounter, d *debt, e *engine.Engine) *charge {
	if d.charging || time.Now().Before(d.quietUntil) {
		return nil
	}
	now := s.serverTime(e)
	c := &charge{debt: d, share: share, engine: e, limit: d.limit, units: d.remaining(now)}
	c.last = !d.quietUntil.IsZero() || usedQuota(&d.share, &d.after, now) == 0
	if c.last {
		delete(s.debts, share)
		s.debtCount[d.limit.Durable]--
	} else if c.units == 0 {
		d.quietUntil = time.Now().Add(quietTime) // an earlier charge was answered
		return nil
	}
	d.charging = true
	d.begin(&d.after)
	s.charging += c.units
	return c
}

// chargeDebt makes a charge in the background. The next batch takes the last one along, before its requests.
func (s *Store) chargeDebt(c *charge) {
	id := lease.RowOf(c.limit, c.debt.key)
	if c.units > 0 {
		c.engine.Charge(c.limit, id.Key, c.units, func(charged int64, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			c.debt.charging = false
			c.debt.quietUntil = time.Now().Add(quietTime)
			s.charging -= c.units
			s.local.Charged += charged
			if err != nil {
				s.local.Lost += c.units
				lease.SetUncertain(c.debt.rows, id, c.share)
			} else {
				s.local.Unfit += c.units - charged
			}
		})
	}
	if c.last {
		lease.SetOwes(c.debt.rows, id, c.share, false)
	}
}
