package slots

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

const (
	// tickInterval is the time between two checks for a due renewal of the session.
	tickInterval = 250 * time.Millisecond
	// If a take got no answer, the server may still run it after the first release. So the store releases an
	// uncertain slot again after each releaseInterval, until the database has answered for lateTakeTime
	// without a break: then no late take can follow.
	releaseInterval = time.Second
	lateTakeTime    = 10 * time.Second
	// maxUncertain bounds the uncertain slots. Beyond it the session ends, and all slots with it.
	maxUncertain = 10000
)

// Session returns a usable session. It starts a new one if necessary, with timeout for each attempt.
func (s *Slots) Session(ctx context.Context, timeout time.Duration) (int64, error) {
	return s.session.Get(ctx, timeout)
}

// began takes slots of a new session for the requests in flight. The caller holds mu.
func (s *Slots) began() {
	atomic.StoreInt32(&s.used, 1)
	var lost []*heldSlots
	for h := range s.held {
		lost = append(lost, h)
	}
	s.held = map[*heldSlots]bool{}
	s.rows = map[lease.RowID]int64{}
	s.uncertain = nil
	if len(lost) > 0 {
		go s.regain(lost)
	}
	if !s.ticking {
		s.ticking = true
		go s.tick()
	}
}

// tick renews the session when that is due, until the store is closed.
func (s *Slots) tick() {
	closing := s.Closing
	for health.Sleep(closing, tickInterval); closing.Err() == nil; health.Sleep(closing, tickInterval) {
		s.Report(batch.PanicError(func() { s.renew(time.Now()) }))
	}
}

// renew releases the uncertain slots that are due for another release, and renews the session.
func (s *Slots) renew(now time.Time) {
	down := s.Health.Unavailable() != nil
	s.mu.Lock()
	again := s.dueUncertain(now, down)
	s.mu.Unlock()
	s.Release(again)
	if !down {
		s.session.Renew(s.Closing, now)
	}
}

// Close ends the session. The caller has released all slots, and closes the store afterwards.
func (s *Slots) Close() {
	if s.Health.Unavailable() == nil {
		s.session.End()
	}
}
