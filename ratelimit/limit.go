package ratelimit

import "time"

// Bounds of a Limit. MaxEvents is the largest whole number that every column and every client
// of the tables (such as a JavaScript number) represents exactly.
const (
	MaxEvents = 1 << 53
	MinWindow = time.Millisecond
	MaxWindow = 36525 * 24 * time.Hour // a hundred years
	// MaxLogEvents bounds Events for SlidingLog and InFlight.
	MaxLogEvents = 1000
	// MaxPrefix is the length of the longest Prefix, in bytes.
	MaxPrefix = 255
	// MinLease and MaxLease bound a Lease.
	MinLease = 0.001
	MaxLease = 0.5
)

// Limit sets how much may pass in which time, and how and where it is counted. Processes with
// equal Limits on one database share their counts. Prefix and Events are required, and so is
// Window unless Calendar is set or the Algorithm is InFlight.
type Limit struct {
	// Prefix is the namespace of the limit's keys: one key under two prefixes has two rows. It is 1 to
	// MaxPrefix bytes of UTF-8 without NUL.
	Prefix string
	// CountedAs, unless it is "", names the rows in place of Prefix, so that a limit keeps its counts when it
	// gets another Prefix.
	CountedAs string
	// Algorithm selects how hits are counted. The default is SlidingWindow.
	Algorithm Algorithm
	// Events is the quota, from 1 to MaxEvents: the sum of the costs that may pass in a Window. A
	// TokenBucket gains Events tokens in a Window.
	Events int64
	// Window is the time to which Events applies, in whole microseconds, from MinWindow to MaxWindow. It
	// must be 0 with a Calendar and for InFlight.
	Window time.Duration
	// Burst is the capacity of a TokenBucket, or the number of units that GCRA allows in one burst, from 1 to
	// MaxEvents. 0 means Events. Other algorithms require 0. A TokenBucket with a Burst below its Events
	// gains one token each Window ÷ Events.
	Burst int64
	// Calendar aligns the windows of a FixedWindow with the calendar in TimeZone: a window begins at
	// midnight, on Monday, on the first day of a month or on the first day of a year.
	Calendar Calendar
	// TimeZone is the IANA name of Calendar's time zone, such as "Europe/Berlin", as ParseTimeZone returns
	// it. "" means UTC.
	TimeZone string
	// Anchor moves the first day of the windows of a Month or Year. It is a day in 1970 to 1972, in days
	// since 1 January 1970, as AnchorOn returns it. 0 means the first day of the month or year. In a month
	// without that day, a window begins on the last day: 31 January, 28 February, 31 March.
	Anchor int64
	// Durable counts in the logged table, which survives a crash of the server; use it for billing and
	// quotas. The unlogged table is faster, and a crash makes all its quotas full again.
	Durable bool
	// SynchronousCommit delays each decision on a Durable limit until it is on disk. Without it, a crash
	// loses the decisions of the last fraction of a second.
	SynchronousCommit bool
	// Lease lets a process charge units in advance and decide hits from them without a round trip. It is
	// the largest share of the remaining quota that one process may hold for one key, from MinLease to
	// MaxLease; 0 turns leases off. Leases never let more pass than the limit allows, but for up to two
	// seconds hits may be refused while another process still holds units. Only SlidingWindow, FixedWindow
	// without a Calendar, and TokenBucket with a Burst of at least Events support leases, with a Window of
	// 200 ms or more.
	Lease float64
	// Reserves makes a hit hold its Cost until its Hold is released, instead of charging it, for a cost that
	// is known only later. A hit passes if anything is left. Proxies use it for limits of tokens, and charge
	// the real cost after the response; a Store has no method that does. Only SlidingWindow and FixedWindow
	// support it, without a Lease.
	Reserves bool
	// Unit names what the limit counts, such as tokens, in records of its hits. "" means requests. It has no
	// effect on decisions.
	Unit string
}

// Capacity returns the full quota: the largest cost that can pass in one burst. It is Burst if Burst
// is set, otherwise Events.
func (l *Limit) Capacity() int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Events
}

// AwaitsDisk reports whether the commit of a charge waits for the disk and for a synchronous standby: l is
// Durable with SynchronousCommit.
func (l *Limit) AwaitsDisk() bool { return l.Durable && l.SynchronousCommit }

// RefillsEvenly reports whether l is a TokenBucket with a Burst below its Events.
func (l *Limit) RefillsEvenly() bool {
	return l.Algorithm == TokenBucket && l.Burst > 0 && l.Burst < l.Events
}

// Equal reports whether two limits decide alike on one row. It compares all fields except Lease, Unit and
// the fields that name the row: Prefix, CountedAs and Durable.
func (l *Limit) Equal(other *Limit) bool {
	return l == other ||
		l.Algorithm == other.Algorithm && l.Events == other.Events && l.Window == other.Window &&
			l.Capacity() == other.Capacity() && l.Calendar == other.Calendar &&
			l.TimeZone == other.TimeZone &&
			l.Anchor == other.Anchor && l.SynchronousCommit == other.SynchronousCommit &&
			l.Reserves == other.Reserves
}
