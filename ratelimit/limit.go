package ratelimit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Algorithm says how a Limit counts.
type Algorithm uint8

const (
	// SlidingWindow weighs the previous window's count by how much of it still
	// lies within the last Window, and adds the current count. The default.
	SlidingWindow Algorithm = iota
	// FixedWindow counts from the first hit until Window has passed.
	FixedWindow
	// TokenBucket holds up to Burst tokens and gains Events of them each Window.
	TokenBucket
)

// algorithmNames are the names in configuration, by Algorithm.
var algorithmNames = []string{"sliding_window", "fixed_window", "token_bucket"}

// String returns the name in configuration, such as "sliding_window".
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return "Algorithm(" + strconv.Itoa(int(a)) + ")"
}

// ParseAlgorithm returns the algorithm of that name; "" is SlidingWindow.
func ParseAlgorithm(name string) (Algorithm, error) {
	if name == "" {
		return SlidingWindow, nil
	}
	for i, known := range algorithmNames {
		if name == known {
			return Algorithm(i), nil
		}
	}
	return 0, &FieldError{"algorithm", name, "one of " + strings.Join(algorithmNames, ", ")}
}

// Bounds of a Limit. MaxEvents is the largest whole number that every column
// and every client of the tables (a JavaScript number, say) holds exactly.
const (
	MaxEvents = 1 << 53
	MinWindow = time.Millisecond
	MaxWindow = 36525 * 24 * time.Hour // a hundred years
	// MaxPrefix is the longest Prefix, in bytes.
	MaxPrefix = 255
)

// Limit is what is enforced: how much may pass, in what time, counted how and
// where. Two processes that use equal Limits on one database count together.
type Limit struct {
	// Prefix is the limit's namespace: keys of different prefixes do not meet.
	// Required; up to 255 bytes of UTF-8 without NUL.
	Prefix string

	// Algorithm is how hits are counted. The default is SlidingWindow.
	Algorithm Algorithm

	// Events is the quota in a Window: the sum of costs that may pass, or for
	// TokenBucket the tokens that come back. From 1 to MaxEvents. Required.
	Events int64

	// Window is the time that Events count for, in whole microseconds, from
	// MinWindow to MaxWindow. Required.
	Window time.Duration

	// Burst is the capacity of a TokenBucket, from 1 to MaxEvents. 0 means
	// Events. No other algorithm takes one.
	Burst int64

	// Durable counts in the logged table, which survives a crash of the server
	// (billing, quotas); otherwise in the unlogged one (abuse).
	Durable bool

	// SynchronousCommit makes each decision on a Durable limit wait until it is
	// flushed to disk. Without it a crash loses the last fraction of a second.
	SynchronousCommit bool
}

// FieldError says which field of a configuration is wrong.
type FieldError struct {
	Field string // such as "limit"
	Value string // what it holds
	Want  string // what it should be
}

// Error reads `limit: "0 1m" is not …`.
func (e *FieldError) Error() string {
	if e.Value == "" {
		return e.Field + ": missing: must be " + e.Want
	}
	return e.Field + ": " + strconv.Quote(e.Value) + ": must be " + e.Want
}

// Validate returns a *FieldError for the first field out of its range.
func (l *Limit) Validate() error {
	if l.Prefix == "" || len(l.Prefix) > MaxPrefix || !storable(l.Prefix) {
		return &FieldError{"prefix", l.Prefix, "a name of 1 to " + strconv.Itoa(MaxPrefix) + " bytes of UTF-8 without NUL"}
	}
	if int(l.Algorithm) >= len(algorithmNames) {
		return &FieldError{"algorithm", l.Algorithm.String(), "one of " + strings.Join(algorithmNames, ", ")}
	}
	if l.Events < 1 || l.Events > MaxEvents {
		return &FieldError{"limit", strconv.FormatInt(l.Events, 10), wantEvents}
	}
	if l.Window < MinWindow || l.Window > MaxWindow || l.Window%time.Microsecond != 0 {
		return &FieldError{"limit", l.Window.String(), wantWindow}
	}
	if l.Burst == 0 {
		return nil
	}
	if l.Algorithm != TokenBucket {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10), "left out: " + l.Algorithm.String() + " has none"}
	}
	if l.Burst < 1 || l.Burst > MaxEvents {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10), "a whole number from 1 to " + strconv.Itoa(MaxEvents)}
	}
	return nil
}

// Capacity is the full quota: the most that can pass at once.
func (l *Limit) Capacity() int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Events
}

// window is Window in microseconds, the unit of all arithmetic here and the
// resolution of Postgres's timestamps.
func (l *Limit) window() int64 { return int64(l.Window / time.Microsecond) }

const (
	wantEvents = "a whole number of events from 1 to 9007199254740992, then a window, as in 100 1m"
	wantWindow = "a window from 1ms to 876600h (100 years) in whole microseconds, as in 100 1m"
)

// ParseRate reads a quota and its window: "100 1m" or "100/1m". The window is
// a duration as ParseWindow takes it.
func ParseRate(text string) (events int64, window time.Duration, err error) {
	fields := strings.Fields(strings.Replace(text, "/", " ", 1))
	if len(fields) != 2 {
		return 0, 0, &FieldError{"limit", text, wantEvents}
	}
	events, err = strconv.ParseInt(fields[0], 10, 64)
	if err != nil || events < 1 || events > MaxEvents {
		return 0, 0, &FieldError{"limit", text, wantEvents}
	}
	window, err = ParseWindow(fields[1])
	if err != nil || window < MinWindow || window > MaxWindow || window%time.Microsecond != 0 {
		return 0, 0, &FieldError{"limit", text, wantWindow}
	}
	return events, window, nil
}

// ParseWindow reads a duration such as "250ms", "1m", "1h30m", "1d" or "2w": as
// time.ParseDuration does, and with d for 24 hours and w for 7 days.
func ParseWindow(text string) (time.Duration, error) {
	rest := text
	var days time.Duration
	for _, unit := range []string{"w", "d"} {
		at := strings.Index(rest, unit)
		if at < 0 {
			continue
		}
		n, err := strconv.ParseUint(rest[:at], 10, 31)
		if err != nil {
			return 0, fmt.Errorf("%q is not a duration such as 30s, 1m, 1h30m, 1d or 2w", text)
		}
		day := 24 * time.Hour
		if unit == "w" {
			day = 7 * 24 * time.Hour
		}
		if n > uint64(MaxWindow/day)+1 {
			return 0, fmt.Errorf("%q is longer than a hundred years", text)
		}
		days += time.Duration(n) * day
		rest = rest[at+1:]
	}
	if rest == "" && text != "" {
		return days, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 30s, 1m, 1h30m, 1d or 2w", text)
	}
	return days + d, nil
}
