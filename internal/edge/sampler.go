package edge

import (
	"sync"
	"time"
)

// Sampler thins out log lines: while a database is down, every request fails
// alike.
type Sampler struct {
	mu      sync.Mutex
	next    time.Time
	dropped int64
}

// samplerInterval is the least time between two lines.
const samplerInterval = time.Second

// Next reports whether a line may be written at now, and how many were dropped
// since the last.
func (s *Sampler) Next(now time.Time) (dropped int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.next) {
		s.dropped++
		return 0, false
	}
	s.next = now.Add(samplerInterval)
	dropped, s.dropped = s.dropped, 0
	return dropped, true
}
