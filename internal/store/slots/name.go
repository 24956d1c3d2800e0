package slots

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
)

const (
	// tickInterval is the time between two checks for a due renewal of the name.
	tickInterval = 250 * time.Millisecond
	// If a take got no answer, the server may still run it after the first release. So the store releases an
	// uncertain slot again after each releaseInterval, until the database has answered for lateTakeTime
	// without a break: then no late take can follow.
	releaseInterval = time.Second
	lateTakeTime    = 10 * time.Second
	// maxUncertain bounds the uncertain slots. Beyond it the name ends, and all slots with it.
	maxUncertain = 10000
)

// began takes slots of a new name for the requests in flight. The caller holds mu.
func (s *Slots) began(previous int64) {
	var lost []*heldSlots
	for h := range s.held {
		lost = append(lost, h)
		s.count(h.Row, -h.N)
	}
	s.held = map[*heldSlots]bool{}
	s.uncertain = nil
	if len(lost) > 0 {
		go s.regain(lost)
	}
	if previous == 0 {
		go s.tick()
	}
}

// tick renews the name when that is due, until the store is closed.
func (s *Slots) tick() {
	closing := s.Closing
	for health.Sleep(closing, tickInterval); closing.Err() == nil; health.Sleep(closing, tickInterval) {
		s.Report(batch.PanicError(func() { s.renew(time.Now()) }))
	}
}

// renew releases the uncertain slots that are due for another release, and renews the name.
func (s *Slots) renew(now time.Time) {
	down := s.Health.Unavailable() != nil
	s.mu.Lock()
	repeated := s.dueUncertain(now, down)
	s.mu.Unlock()
	s.Release(repeated)
	if !down {
		s.Name.Renew(now)
	}
}
