package store

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Remembers reports whether a row can refuse a hit from memory.
func (s *Store) Remembers() bool {
	if atomic.LoadInt32(&s.found) == 0 {
		return false
	}
	for _, e := range s.engines {
		if atomic.LoadInt64(&e.Rows().RowCount) > 0 {
			return true
		}
	}
	return false
}

// RefuseRemembered returns the decisions on hits if a remembered refusal refuses one of them, and nil if none
// does. It refuses no request with a hit that is Independent, which the database has to count.
func (s *Store) RefuseRemembered(hits []ratelimit.Hit) []ratelimit.Decision {
	for i := range hits {
		if hits[i].Independent {
			return nil
		}
	}
	decisions := make([]ratelimit.Decision, len(hits))
	refused := -1
	for i := range hits {
		h := &hits[i]
		if refused < 0 && s.Engine(subjectOf(h)).Remembers(h, &decisions[i]) {
			refused = i
		} else {
			decisions[i] = batch.Undecided(h)
		}
	}
	if refused < 0 {
		return nil
	}
	return decisions
}
