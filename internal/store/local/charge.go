package local

import (
	"math"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// After an outage, the units that were admitted on durable limits are charged: for each row one charge, which
// is sent once. If its outcome is unknown, it is lost, and counted.

// maxUnpaid bounds the charges that are to be sent. A row can have one for each outage.
const maxUnpaid = 10000

// debt holds the units of a durable limit that a row has admitted, until they are charged.
type debt struct {
	of            *row
	subject       string // of the hits
	limit         *ratelimit.Limit
	charge        int64
	share         ratelimit.Limit // the share of limit, as of the last charge
	taken         int64           // what charge has taken of the share
	before, after algorithm.Row   // the share before the first charge, and after the last one
}

// owe adds the cost of a hit to the debt of its row. share is the same hit on the share, and before is the
// row before it. The caller holds the mutex.
func (s *Shares) owe(r *row, h, share *ratelimit.Hit, before *algorithm.Row, now int64) {
	d := r.debt
	switch {
	case d != nil && d.counts(now) == 0: // such as that of an earlier window
		d.charge = 0
		d.taken = 0
		d.before = *before
	case d == nil:
		if len(s.unpaid) >= maxUnpaid {
			s.state.Lost += h.Cost
			return
		}
		d = &debt{of: r, subject: r.id.Key, before: *before}
		if h.Subject != "" {
			d.subject = strings.Clone(h.Subject) // it may be a part of a long request
		}
		r.debt = d
		s.unpaid = append(s.unpaid, d)
	}
	d.limit = h.Limit
	d.charge += h.Cost
	d.share = *share.Limit
	d.taken += share.Cost
	d.after = r.row
}

// counts returns the part of a debt that still counts: the part of the share that the debt still takes up.
// Nothing counts after the end of its window.
func (d *debt) counts(now int64) int64 {
	left := usedOf(&d.share, &d.after, now) - usedOf(&d.share, &d.before, now)
	switch {
	case left <= 0:
		return 0
	case left >= d.taken:
		return d.charge
	}
	return int64(math.Ceil(float64(d.charge) * float64(left) / float64(d.taken)))
}

// usedOf returns the part of its limit that a row has used.
func usedOf(l *ratelimit.Limit, r *algorithm.Row, now int64) int64 {
	free, _ := algorithm.Of(l).Peek(l, r, now)
	return l.Capacity() - free
}

// Bill charges the debts of the subjects for which the database answers.
func (s *Shares) Bill() {
	for _, d := range s.bill() {
		s.next.Charge(d.subject, d.of.id, d.limit, d.charge)
	}
}

// bill removes the debts for which the database answers, and returns what still counts of them.
func (s *Shares) bill() []debt {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.serverTime()
	var billed []debt
	var left []*debt
	for _, d := range s.unpaid {
		if !s.next.Answers(d.subject) {
			left = append(left, d)
			continue
		}
		if n := d.counts(now); n > 0 {
			s.charging += n
			billed = append(billed, debt{of: d.of, subject: d.subject, limit: d.limit, charge: n})
		}
		if d.of.debt == d {
			d.of.debt = nil
		}
	}
	s.unpaid = left
	return billed
}

// Charged implements engine.Rows.
func (s *Shares) Charged(units, charged int64, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charging -= units
	s.state.Charged += charged
	if lost {
		s.state.Lost += units
	} else {
		s.state.Unfit += units - charged
	}
}
