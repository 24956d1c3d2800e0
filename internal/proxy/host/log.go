package host

import (
	"sync"
	"time"
)

// Line is a line of the log of a proxy. It holds no key of a request and no DSN.
type Line struct {
	Level   Level
	Text    string
	Setting string // the setting that Text concerns, or ""
	Prefix  string // the prefix of the limit, or ""
	Err     error
	Dropped int64 // the number of such lines dropped since the last one

	// Lasted and Undecided describe an outage that has ended: its duration, and the number of requests
	// without a decision.
	Lasted    time.Duration
	Undecided int64
}

// Level is the level of a Line. The values are those of zapcore.Level.
type Level int32

// The values of Level.
const (
	Info Level = iota
	Warn
	Error
)

// Sampler bounds how often a failure is logged, since every request fails alike while a database is down.
type Sampler struct {
	mu      sync.Mutex // guards all that follows
	next    time.Time
	dropped int64
}

// Next reports whether a line may be logged at now, which is if the last one is at least least ago, and
// returns the number of lines dropped since then.
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
