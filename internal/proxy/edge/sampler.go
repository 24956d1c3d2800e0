package edge

import (
	"sync"
	"time"
)

// Sampler bounds how often a failure is logged: while a database is down, every request
// fails alike.
type Sampler struct {
	mu      sync.Mutex // guards all that follows
	next    time.Time
	dropped int64
}

// Next reports whether a line may be logged at now, least after the last one, and how many lines were dropped since then.
func (s *Sampler) Next(now time.Time, least time.Duration) (dropped int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.next) {
		s.dropped++
		return 0, false
	}
	s.next = now.Add(least)
	dropped, s.dropped = s.dropped, 0
	return dropped, true
}
