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
	// SlidingLog keeps the time of each hit: exact, but a row of up to Events
	// times, so Events is at most MaxLogEvents.
	SlidingLog
	// GCRA spaces hits evenly, Events in a Window, with up to Burst at once.
	GCRA
)

// algorithmNames are the names in configuration, by Algorithm.
var algorithmNames = []string{"sliding_window", "fixed_window", "token_bucket", "sliding_log", "gcra"}

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
	// MaxLogEvents bounds Events of a SlidingLog.
	MaxLogEvents = 1000
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

	// Burst is the capacity of a TokenBucket, or how many GCRA lets pass at
	// once, from 1 to MaxEvents. 0 means Events. No other algorithm takes one.
	Burst int64

	// Calendar makes the windows of FixedWindow those of the calendar in Zone:
	// each begins at midnight, on Monday, on the first of a month or of a year.
	// Window is then 0.
	Calendar Calendar

	// Zone is the name of Calendar's time zone, as in the IANA database:
	// "Europe/Berlin". "" is UTC.
	Zone string

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
	if l.Calendar != NoCalendar || l.Zone != "" {
		if err := l.validateCalendar(); err != nil {
			return err
		}
	} else if l.Window < MinWindow || l.Window > MaxWindow || l.Window%time.Microsecond != 0 {
		return &FieldError{"limit", l.Window.String(), wantWindow}
	}
	if l.Burst != 0 && l.Algorithm != TokenBucket && l.Algorithm != GCRA {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10), "left out: " + l.Algorithm.String() + " has none"}
	}
	if l.Burst < 0 || l.Burst > MaxEvents {
		return &FieldError{"burst", strconv.FormatInt(l.Burst, 10), "a whole number from 1 to " + strconv.Itoa(MaxEvents)}
	}
	if l.Algorithm == SlidingLog && l.Events > MaxLogEvents {
		return &FieldError{"limit", strconv.FormatInt(l.Events, 10), "at most 1000 events for sliding_log, which keeps the time of each"}
	}
	if l.Algorithm == GCRA && (l.Capacity() > maxSpan/window(l) || l.Events > maxSpan/window(l)) {
		return &FieldError{"limit", strconv.FormatInt(l.Capacity(), 10) + " in " + l.Window.String(),
			"smaller for gcra: burst (or events) times the window in microseconds must not exceed 2^62"}
	}
	if l.Algorithm == GCRA && mulDiv(l.Capacity(), window(l), l.Events, true) > horizon {
		return &FieldError{"burst", strconv.FormatInt(l.Capacity(), 10), "smaller for gcra: it must drain within 100 years"}
	}
	return nil
}

// Capacity is the full quota: the most that can pass at once.
func (l *Limit) Capacity() int64 { return capacity(l) }

const (
	wantEvents = "a whole number of events from 1 to 9007199254740992, then a window, as in 100 1m"
	wantWindow = "a window from 1ms to 876600h (100 years) in whole microseconds, as in 100 1m"
)

// Rate is the quota of a configuration: what ParseRate reads.
type Rate struct {
	Events   int64
	Window   time.Duration
	Calendar Calendar
	Zone     string
}

// ParseRate reads a quota and its window, "100 1m" or "100/1m", where the window
// is a duration as ParseWindow takes it; or a quota on the calendar, "10000 1mo
// calendar", perhaps with a time zone: "10000 1d calendar Europe/Berlin".
func ParseRate(text string) (Rate, error) {
	fields := strings.Fields(strings.Replace(text, "/", " ", 1))
	if len(fields) > 2 && fields[2] == "calendar" {
		// The zone has a slash of its own.
		fields = strings.Fields(text)
		if first := strings.SplitN(fields[0], "/", 2); len(first) == 2 {
			fields = append(first, fields[1:]...)
		}
		return parseCalendar(text, fields)
	}
	if len(fields) != 2 {
		return Rate{}, &FieldError{"limit", text, wantEvents}
	}
	r, err := parseEvents(text, fields[0])
	if err != nil {
		return Rate{}, err
	}
	r.Window, err = ParseWindow(fields[1])
	if err != nil || r.Window < MinWindow || r.Window > MaxWindow || r.Window%time.Microsecond != 0 {
		return Rate{}, &FieldError{"limit", text, wantWindow}
	}
	return r, nil
}

func parseEvents(text, events string) (Rate, error) {
	n, err := strconv.ParseInt(events, 10, 64)
	if err != nil || n < 1 || n > MaxEvents {
		return Rate{}, &FieldError{"limit", text, wantEvents}
	}
	return Rate{Events: n}, nil
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
