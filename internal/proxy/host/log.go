package host

import (
	"sync"
	"time"
)

// Line is a line of a proxy's log. It contains neither keys of requests nor a DSN.
type Line struct {
	Level   Level
	Text    string
	Setting string // the setting that Text concerns, or ""
	Prefix  string // the prefix of the limit, or ""
	Err     error
	Dropped int64 // the number of lines that an Outage or a Sampler dropped before this one

	// Lasted and Undecided describe an outage that has ended: its duration, and the number of requests
	// without a decision.
	Lasted    time.Duration
	Undecided int64
}

// Level is the level of a Line. Its values equal the values of zapcore.Level.
type Level int32

// The values of Level.
const (
	Info Level = iota
	Warn
	Error
)

// Sampler bounds how often a failure is logged, since every request fails in the same way while a database is
// down.
type Sampler struct {
	mu      sync.Mutex // guards the fields below
	next    time.Time
	dropped int64
	names   map[string]bool // those that AllowName has allowed since the interval began
}

// Allow reports whether to log a line at now. It allows one line in each interval, and returns the number of
// lines dropped since the previous one.
func (s *Sampler) Allow(now time.Time, interval time.Duration) (dropped int64, ok bool) {
	return s.AllowName(now, interval, "")
}

// maxNames is the number of names in an interval of AllowName.
const maxNames = 10

// AllowName is like Allow, for a line with a name that clients choose. It allows one line for each of the
// first maxNames names in an interval.
func (s *Sampler) AllowName(now time.Time, interval time.Duration, name string) (dropped int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !now.Before(s.next) {
		s.next = now.Add(interval)
		s.names = map[string]bool{}
	}
	if s.names[name] || len(s.names) >= maxNames {
		s.dropped++
		return 0, false
	}
	s.names[name] = true
	dropped, s.dropped = s.dropped, 0
	return dropped, true
}
