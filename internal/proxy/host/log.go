package host

import (
	"sync"
	"time"
)

// Line is a line of the log of a proxy. It holds no key of a request and no DSN.
type Line struct {
	Level   Level
	Text    string
	Setting string // the subject of Text; "" without
	Prefix  string // of the limit; "" without
	Err     error
	Dropped int64 // how many such lines were not logged since the last one

	// Lasted and Undecided are for a line after an outage: how long the outage lasted, and how many requests
	// had no decision.
	Lasted    time.Duration
	Undecided int64
}

// Level is the level of a Line.
type Level int32

// The values of Level.
const (
	Info Level = iota
	Warn
	Error
)

// Sampler bounds how often a failure is logged: while a database is down, every request fails alike.
type Sampler struct {
	mu      sync.Mutex // guards all that follows
	next    time.Time
	dropped int64
}

// Next reports whether a line may be logged at now, at least least after the last one, and how many lines
// were dropped since then.
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
