package engine

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// SetPaused implements chain.Store. A pause gives all leases back, and none begins in it: what
// decides by them in memory then needs not ask whether limits are paused.
func (s *Store) SetPaused(paused bool) {
	now := int32(0)
	if paused {
		now = 1
	}
	if atomic.SwapInt32(&s.paused, now) == now {
		return
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

// SetProxies implements chain.Store.
func (s *Store) SetProxies(n int64) { atomic.StoreInt64(&s.engine.bounds.proxies, n) }

// Tick implements chain.Store.
func (s *Store) Tick() {}
