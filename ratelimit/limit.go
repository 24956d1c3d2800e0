package ratelimit

import "time"

// Bounds of a Limit. MaxEvents is the largest whole number that every column
// and every client of the tables (a JavaScript number, say) holds exactly.
const (
	MaxEvents = 1 << 53
	MinWindow = time.Millisecond
	MaxWindow = 36525 * 24 * time.Hour // a hundred years
	// MaxLogEvents bounds Events of a SlidingLog, and of InFlight.
	MaxLogEvents = 1000
	// MaxPrefix is the longest Prefix, in bytes.
	MaxPrefix = 255
	// MinLease and MaxLease bound a Lease.
	MinLease = 0.001
	MaxLease = 0.5
)

// Limit is what is enforced: how much may pass in what time, and how and where it is
// counted. Processes that use equal Limits on one database count together.
type Limit struct {
	// Prefix is the limit's namespace: the same key under two prefixes is two rows.
	// Required; up to 255 bytes of UTF-8 without NUL.
	Prefix string
	// Algorithm is how hits are counted. The default is SlidingWindow.
	Algorithm Algorithm
	// Events is the quota in a Window: the sum of the costs that may pass, or for
	// TokenBucket the tokens that are added. From 1 to MaxEvents. Required.
	Events int64
	// Window is the time to which Events apply, in whole microseconds, from
	// MinWindow to MaxWindow. Required without a Calendar, except for InFlight, which has none.
	Window time.Duration
	// Burst is the capacity of a TokenBucket, or how many GCRA lets pass at
	// once, from 1 to MaxEvents. 0 means Events. No other algorithm takes one. A
	// TokenBucket with a Burst below its Events gains one token each Window ÷ Events.
	Burst int64
	// Calendar makes the windows of FixedWindow follow the calendar in Zone: a
	// window begins at midnight, on Monday, on the first day of a month or on the
	// first day of a year. Window is then 0.
	Calendar Calendar
	// Zone is the IANA name of Calendar's time zone, such as "Europe/Berlin". "" is
	// UTC.
	Zone string
	// Anchor is a day on which a window of a Calendar of Month or Year begins, in days since 1
	// January 1970, as AnchorOn returns it. With 0, and with the first of a January,
	// windows begin with the calendar's months and years. In a month that does not have the
	// anchor's day, a window begins on the last day: 31 January, 28 February, 31 March.
	Anchor int64
	// Durable counts in the logged table, which survives a crash of the server (billing,
	// quotas); otherwise in the unlogged one (abuse), and a crash makes every quota full again.
	Durable bool
	// SynchronousCommit makes each decision on a Durable limit wait until it is
	// flushed to disk. Without it a crash loses the last fraction of a second.
	SynchronousCommit bool
	// Lease lets a process charge units in advance, and decide hits from them without
	// asking the database: it is the largest share of what is left that one process may
	// hold of one key, from MinLease to MaxLease. 0 is none. No more passes than the limit allows. Some may be
	// refused although another process still holds units, for two seconds. Only SlidingWindow, FixedWindow without
	// a calendar, and TokenBucket with a Burst of at least its Events have leases, for a Window of 200 ms or more.
	Lease float64
}

// Capacity is the full quota: the most that can pass at once. It is Burst if there
// is one, else Events.
func (l *Limit) Capacity() int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Events
}

// RefillsEvenly reports whether a limit is a TokenBucket with a Burst below its Events.
func (l *Limit) RefillsEvenly() bool {
	return l.Algorithm == TokenBucket && l.Burst > 0 && l.Burst < l.Events
}

// Equal reports whether two limits decide alike on one row: all fields are equal but
// Prefix and Durable, which name the row, and Lease.
func (l *Limit) Equal(other *Limit) bool {
	return l == other || l.Algorithm == other.Algorithm && l.Events == other.Events && l.Window == other.Window &&
		l.Capacity() == other.Capacity() && l.Calendar == other.Calendar && l.Zone == other.Zone &&
		l.Anchor == other.Anchor && l.SynchronousCommit == other.SynchronousCommit
}
