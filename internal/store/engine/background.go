package engine

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// SetPaused says that limits are paused, or not any more. A pause gives all leases back, and none begins in it: what
// decides by them in memory then needs not ask whether limits are paused.
func (s *Store) SetPaused(paused bool) {
	now := int32(0)
	if paused {
		now = 1
	}
	if atomic.SwapInt32(&s.paused, now) == now {
		return
	}
	if p := partsOf(s); p != nil {
		setPartsPaused(p, paused)
	}
	if s.engine.leases == nil {
		return
	}
	if paused {
		lease.End(s.engine.leases.Set)
	} else {
		lease.Begin(s.engine.leases.Set)
	}
}

// SetProxies says how many proxies there are, this one included.
func (s *Store) SetProxies(n int64) { atomic.StoreInt64(&s.engine.local.live, n) }

// Tick does what is due about twice a second.
func (s *Store) Tick(now time.Time) {
	if p := partsOf(s); p != nil {
		startTimelines(s.engine.server.closing, p)
	}
	s.chargeLocal(now)
}
