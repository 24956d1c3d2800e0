package ratelimit

import (
	"strconv"
	"strings"
)

// algorithms is the table of algorithms, by Algorithm: the name in configurations,
// and what a Limit may say. Package algorithm defines how each of them counts.
var algorithms = []struct {
	name      string
	maxEvents int64
	burst     bool // a Limit may have a Burst
	calendar  bool // windows may follow the calendar
	check     func(l *Limit) error
	noWindow  bool   // a Limit has no Window
	noLease   string // why a Limit has no Lease; "" if it may have one
}{
	SlidingWindow: {name: "sliding_window", maxEvents: MaxEvents},
	FixedWindow:   {name: "fixed_window", maxEvents: MaxEvents, calendar: true},
	TokenBucket:   {name: "token_bucket", maxEvents: MaxEvents, burst: true, check: checkBucket},
	SlidingLog:    {name: "sliding_log", maxEvents: MaxLogEvents, noLease: "each charge expires a window after it was made, so an early one would expire too early"},
	GCRA:          {name: "gcra", maxEvents: MaxEvents, burst: true, check: checkGCRA, noLease: "each charge drains from the moment it is made, so an early one would drain too early"},
	InFlight:      {name: "in_flight", maxEvents: MaxLogEvents, noWindow: true, noLease: "a slot is held by one request"},
}

// Algorithms returns all algorithms, in the order of their constants.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(algorithms))
	for i := range algorithms {
		all[i] = Algorithm(i)
	}
	return all
}

// String returns the name in configurations, such as "sliding_window".
func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a].name
	}
	return "Algorithm(" + strconv.Itoa(int(a)) + ")"
}

// ParseAlgorithm returns the algorithm of that name; "" is SlidingWindow.
func ParseAlgorithm(name string) (Algorithm, error) {
	if name == "" {
		return SlidingWindow, nil
	}
	for i := range algorithms {
		if name == algorithms[i].name {
			return Algorithm(i), nil
		}
	}
	return 0, &FieldError{"algorithm", name, wantAlgorithm()}
}

func wantAlgorithm() string {
	names := make([]string, len(algorithms))
	for i := range algorithms {
		names[i] = algorithms[i].name
	}
	return "one of " + strings.Join(names, ", ")
}

// maxSpan bounds, for GCRA, Capacity times the Window in microseconds, and for a TokenBucket
// with a Burst below its Events, Burst times the Window, so that every calculation fits into
// 64 bits.
const maxSpan = int64(1) << 62

// checkBucket checks what only a TokenBucket that is refilled evenly demands.
func checkBucket(l *Limit) error {
	if l.RefillsEvenly() && l.Burst > maxSpan/int64(l.Window/1000) {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10),
			"smaller, or at least the events of the limit: below them, burst times the window in microseconds must not exceed 2^62"}
	}
	return nil
}

// checkGCRA checks what only GCRA demands.
func checkGCRA(l *Limit) error {
	window := int64(l.Window / 1000)
	if most := maxSpan / window; l.Capacity() > most || l.Events > most {
		return &FieldError{"events", strconv.FormatInt(l.Capacity(), 10) + " in " + l.Window.String(),
			"smaller for gcra: burst (or events) times the window in microseconds must not exceed 2^62"}
	}
	if drained := (l.Capacity()*window + l.Events - 1) / l.Events; drained > int64(MaxWindow/1000) {
		return &FieldError{"burst", strconv.FormatInt(l.Capacity(), 10), "smaller for gcra: a full burst must drain within 100 years"}
	}
	return nil
}
