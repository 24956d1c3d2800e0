package ratelimit

import (
	"strconv"
	"strings"
)

// algorithms describes each Algorithm: its name in configurations and the fields that a
// Limit may set. Package internal/core/algorithm implements the counting.
var algorithms = []struct {
	name      string
	maxEvents int64
	burst     bool // a Limit may set Burst
	calendar  bool // a Limit may set Calendar
	check     func(l *Limit) error
	noWindow  bool   // a Limit must not set Window
	noLease   string // the reason why a Limit must not set Lease; "" if it may
}{
	SlidingWindow: {name: "sliding_window", maxEvents: MaxEvents},
	FixedWindow:   {name: "fixed_window", maxEvents: MaxEvents, calendar: true},
	TokenBucket:   {name: "token_bucket", maxEvents: MaxEvents, burst: true, check: checkBucket},
	SlidingLog: {name: "sliding_log", maxEvents: MaxLogEvents,
		noLease: "each charge expires a window after it was made, so an early one would expire too early"},
	GCRA: {name: "gcra", maxEvents: MaxEvents, burst: true, check: checkGCRA,
		noLease: "each charge drains from the moment it is made, so an early one would drain too early"},
	InFlight: {name: "in_flight", maxEvents: MaxLogEvents, noWindow: true,
		noLease: "a slot is held by one request"},
}

// Algorithms returns all algorithms, in the order of their constants.
func Algorithms() []Algorithm {
	list := make([]Algorithm, len(algorithms))
	for i := range algorithms {
		list[i] = Algorithm(i)
	}
	return list
}

// String returns the name used in configurations, such as "sliding_window".
func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a].name
	}
	return "Algorithm(" + strconv.Itoa(int(a)) + ")"
}

// ParseAlgorithm returns the algorithm with the given name. "" means SlidingWindow.
// The error is a *FieldError.
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

// maxSpan bounds a quota times a Window in microseconds, so that every calculation fits into 64 bits.
// For GCRA the quota is Capacity; for a TokenBucket with a Burst below its Events it is Burst.
const maxSpan = int64(1) << 62

// checkBucket returns a *FieldError if an evenly refilled TokenBucket exceeds maxSpan.
func checkBucket(l *Limit) error {
	if l.RefillsEvenly() && l.Burst > maxSpan/int64(l.Window/1000) {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10),
			"smaller, or at least the events of the limit: below them, burst times the window in " +
				"microseconds must not exceed 2^62"}
	}
	return nil
}

// checkGCRA returns a *FieldError if l exceeds maxSpan, or if a full burst takes longer
// than MaxWindow to drain.
func checkGCRA(l *Limit) error {
	window := int64(l.Window / 1000)
	most := l.Capacity()
	if l.Events > most {
		most = l.Events
	}
	if most > maxSpan/window {
		return &FieldError{"events", strconv.FormatInt(most, 10) + " in " + l.Window.String(),
			"smaller for gcra: burst (or events) times the window in microseconds must not exceed 2^62"}
	}
	if drained := (l.Capacity()*window + l.Events - 1) / l.Events; drained > int64(MaxWindow/1000) {
		return &FieldError{"burst", strconv.FormatInt(l.Capacity(), 10),
			"smaller for gcra: a full burst must drain within 100 years"}
	}
	return nil
}
