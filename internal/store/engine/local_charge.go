package engine

import (
	"sync/atomic"
	"time"
)

// After an outage, what local has admitted on durable limits is charged: for each row one settlement, which
// is sent once. If its outcome is unknown, it is lost, and counted.

// chargeLocal has charged what was admitted without the database, and ends the time of local limits.
func (s *Store) chargeLocal(now time.Time) {
	if p := s.parts; p != nil && atomic.LoadInt32(&p.state) == partsUnknown {
		s.engine.tables.start()
		return // to be continued
	}
	k := s.engine.local
	k.bill(decidingStores(s))
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.state.Last) >= localLinger && len(k.unpaid) == 0 && k.charging == 0 && s.Unavailable() == nil {
		k.state.On = false
	}
}

// bill makes settlements of what is not charged, for those of the stores that answer.
func (k *local) bill(stores []*Store) {
	k.mu.Lock()
	now := k.serverTime(stores[0])
	var left []*localDebt
	var billed []*localDebt
	var units []int64 // of each
	for _, d := range k.unpaid {
		s := stores[partOfSubject(d.subject, len(stores))]
		if s.engine.server.unavailable() != nil {
			left = append(left, d)
			continue
		}
		if n := d.counts(now); n > 0 {
			k.charging += n
			billed = append(billed, d)
			units = append(units, n)
		}
		if d.of.debt == d {
			d.of.debt = nil
		}
	}
	k.unpaid = left
	k.mu.Unlock()
	for i, d := range billed {
		s := stores[partOfSubject(d.subject, len(stores))]
		s.engine.settlements.Charge(d.of.id, d.limit, units[i])
	}
}

// settled records what has become of units that were to be charged: how many of them were, and whether the others may
// have been.
func (k *local) settled(units, charged int64, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.charging -= units
	k.state.Charged += charged
	if lost {
		k.state.Lost += units
	} else {
		k.state.Unfit += units - charged
	}
}
