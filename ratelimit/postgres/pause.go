package postgres

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// Paused reports whether the limits of the database are paused, see Options.Node. Store.Take does
// not ask: bans are counted in a pause as well. Callers that enforce limits let requests pass.
func (s *Store) Paused() bool { return atomic.LoadInt32(&s.paused) != 0 }

// pauseFor begins a pause that ends after so long, changes the time of the one that is under way, or
// ends it with 0. A pause ends at its time whether the database answers or not.
func (s *Store) pauseFor(left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return // it stays as it is
	}
	if s.pauseEnds != nil {
		s.pauseEnds.Stop()
		s.pauseEnds = nil
	}
	if left <= 0 {
		s.setPaused(0)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pauseEnds == timer && !s.closed {
			s.pauseEnds = nil
			s.setPaused(0)
		}
	})
	s.pauseEnds = timer
	s.setPaused(1)
}

// setPaused sets whether limits are paused. A pause gives all leases back, and none begins in it: what
// decides by them in memory then needs not ask whether limits are paused. The caller holds the mutex.
func (s *Store) setPaused(paused int32) {
	if atomic.SwapInt32(&s.paused, paused) == paused {
		return
	}
	if p := partsOf(s); p != nil {
		setPartsPaused(p, paused)
	}
	if s.engine.leases == nil {
		return
	}
	if paused != 0 {
		lease.End(s.engine.leases)
	} else {
		lease.Begin(s.engine.leases)
	}
}
