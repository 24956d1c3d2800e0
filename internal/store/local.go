package store

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// While the database makes no decisions, a Store decides at a share of each limit for this process. After
// UseLocal, its engines remember what rows last held. During an outage, the used and the remaining quota of a
// row are divided by the number of proxies, so that the proxies together admit about what the limit allows.
// Admitted units become debts, which are charged after the outage. A row that owes stays at its share until
// then, see local_charge.go. The database's next decision on any other row replaces the share.

// linger is the time without local decisions after which limits count as exact again.
const linger = 2 * time.Second

// localText and exactText are the formats of lines in the log.
const (
	localText = "the database makes no decisions: this proxy limits by itself, at %.3g %% of each limit"
	exactText = "limits are exact again: this proxy has admitted %d requests by itself, and refused %d. Of " +
		"their units, %d were charged, %d were beyond the quotas, and %d could not be charged"
)

// UseLocal starts remembering what rows last held, for TakeLocal.
func (s *Store) UseLocal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usesLocal = true
	lease.KeepLocal(s.base.Rows())
	for _, e := range s.engines {
		lease.KeepLocal(e.Rows())
	}
}

// SetProxies sets the number of proxies, this one included.
func (s *Store) SetProxies(n int64) { atomic.StoreInt32(&s.proxies, int32(n)) }

// TakeLocal decides hits without the database, at this process's share of each limit. A limit has as many
// shares as the registry last counted proxies. cause is the error with which the database made no decision.
// TakeLocal records what the database must charge after the outage. It returns false if the hits are not
// valid.
func (s *Store) TakeLocal(cause error, hits []ratelimit.Hit, decisions []ratelimit.Decision) bool {
	if ratelimit.ValidateHits(hits, decisions) != nil {
		return false
	}
	proxies := float64(atomic.LoadInt32(&s.proxies))
	limits := make([]ratelimit.Limit, len(hits)) // the shares
	shareHits := append([]ratelimit.Hit(nil), hits...)
	shares := make([]*lease.LocalCounter, len(hits))
	before := make([]algorithm.Row, len(hits))
	rows := make([]*algorithm.Row, len(hits))
	times := make([]int64, len(hits))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range hits {
		h := &hits[i]
		limits[i] = algorithm.ShareLimit(h.Limit, proxies)
		shareHits[i].Limit = &limits[i]
		if capacity := limits[i].Capacity(); h.Cost > capacity && h.Cost <= h.Limit.Capacity() {
			shareHits[i].Cost = capacity // else it could never pass
		}
		e := s.Engine(subjectOf(h))
		id := lease.RowOf(h.Limit, h.StoredKey())
		times[i] = s.serverTime(e)
		shares[i] = lease.ShareOf(e.Rows(), id, proxies, &limits[i], times[i])
		rows[i] = &shares[i].Row
		if h.Limit.Algorithm == ratelimit.InFlight {
			rows[i].Slots = e.Held(id)
		}
		before[i] = *rows[i]
	}
	passes := algorithm.Decide(shareHits, rows, times, decisions)
	s.countLocal(proxies, passes)
	// A statement that was sent may have charged the hits.
	owed := errors.Is(cause, ratelimit.ErrUnavailable) && !errors.Is(cause, engine.ErrSent)
	for i := range hits {
		h := &hits[i]
		d := &decisions[i]
		charged := h.Cost > 0 && !h.Peek && d.Allowed && (passes || h.Independent)
		switch {
		case charged && (h.Limit.Algorithm == ratelimit.InFlight || h.Limit.Reserves):
			s.Engine(subjectOf(h)).AcquireLocal(lease.RowOf(h.Limit, h.StoredKey()), h)
		case charged && owed:
			s.addDebt(shares[i], h, &shareHits[i], &before[i], times[i], !errors.Is(cause, ErrOwes))
		}
		// The units that all proxies have used, if each proxy has used as much as this one.
		used := int64(float64(limits[i].Capacity()-d.Remaining) * proxies)
		d.Quota = h.Limit.Capacity()
		d.Remaining = algorithm.Remaining(d.Quota, d.Quota-used)
		d.Source = ratelimit.FromMemory
		d.DecidedAt = 0 // no settlement follows, because the database lacks the charge
	}
	return true
}

// settleLocal settles requests in the shares of their rows while the database makes no decisions.
func (s *Store) settleLocal(bills []*batch.Bill) {
	proxies := float64(atomic.LoadInt32(&s.proxies))
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.local.On {
		return
	}
	for _, one := range bills {
		for i := range one.Charges {
			c := &one.Charges[i]
			if !c.Limit.Reserves {
				continue
			}
			e := s.engineOf(c.Subject, c.Key)
			limit := algorithm.ShareLimit(c.Limit, proxies)
			now := s.serverTime(e)
			share := lease.ShareOf(e.Rows(), lease.RowOf(c.Limit, c.Key), proxies, &limit, now)
			held := e.Ledger().Held(c.Hold)
			if held > limit.Events {
				held = limit.Events // as TakeLocal has charged
			}
			algorithm.Settle(&limit, &share.Row, now, c.RealUnits, c.Excess, held)
		}
	}
}

// Local describes the decisions of TakeLocal in the current or the last outage.
type Local struct {
	On                bool      // limits are not exact now
	Since, Last       time.Time // the times of the first and the last decision
	Admitted, Refused int64     // the numbers of requests

	// Charged, Unfit and Lost count admitted units. After the outage, Charged were charged, Unfit exceeded
	// the quota, and Lost may or may not have been charged.
	Charged, Unfit, Lost int64
}

// Local returns the Local of the current or the last outage.
func (s *Store) Local() Local {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// countLocal counts a decision of TakeLocal, and writes to the log at the first one of an outage. proxies is
// the number of shares of each limit. The caller holds the mutex.
func (s *Store) countLocal(proxies float64, admitted bool) {
	now := time.Now()
	if !s.local.On {
		s.local = Local{On: true, Since: now}
		s.notify(fmt.Sprintf(localText, 100/proxies))
	}
	s.local.Last = now
	if admitted {
		s.local.Admitted++
	} else {
		s.local.Refused++
	}
	if s.node != nil {
		s.node.CountLocal(s.local.Since, now)
	}
}

// endLocal ends the time of local limits once the database decides, all debts are charged, and linger is
// over.
func (s *Store) endLocal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.local
	if !l.On || time.Since(l.Last) < linger || len(s.debts) > 0 || s.charging > 0 || !s.Ready() ||
		s.Unavailable() != nil {
		return
	}
	l.On = false
	s.notify(fmt.Sprintf(exactText, l.Admitted, l.Refused, l.Charged, l.Unfit, l.Lost))
}

// notify passes a text to Options.Log, unless it is nil.
func (s *Store) notify(text string) {
	if s.options.Log != nil {
		_ = batch.PanicError(func() { s.options.Log(text) })
	}
}
