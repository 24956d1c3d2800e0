package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A process that is far from the database has early leases, see ratelimit.Limit.LeaseEarly. They differ from others:
//
//   - A lease begins with the first hit of a key, and is charged with the statement of this hit.
//   - Renewals are asked for so early that the units last for the round trips until they come.
//   - Near the limit, the process may hold what the key needs for some round trips, whatever the share is.
//   - While nothing is left, the process asks for units, and refuses the hits meanwhile. Units of the quota that become
//     free are thus used a round trip late.

// fewest is how many units the process may always hold of what is left.
const fewest = 8

// allowance is the time for which units must last from when a renewal is asked for, in microseconds. A renewal may wait
// for the one before it, and for a round of Maintain.
func allowance(t *Set) int64 { return 2*atomic.LoadInt64(&t.roundTrip) + 50000 }

// SetRoundTrip says how long a batch took, in microseconds.
func SetRoundTrip(t *Set, took int64) {
	if before := atomic.LoadInt64(&t.roundTrip); before > 0 {
		took = before + (took-before)/8
	}
	atomic.StoreInt64(&t.roundTrip, took)
}

// probe is the time between two charges for an early lease while nothing is left, in microseconds.
func probe(t *Set) int64 { return allowance(t) + 100000 }

// need is how many units an early lease needs for two renewals.
func need(t *Set, l *Lease) int64 {
	return int64(l.rate*2*float64(allowance(t))/1e6) + fewest
}

// early returns how much an early lease should hold, and the most that it may. The caller holds the shard's mutex.
func early(t *Set, l *Lease, horizon, elapsed int64) (target, most int64) {
	rate := float64(l.Used) * 1e6 / float64(elapsed)
	if l.known && rate < l.rate {
		rate = (3*l.rate + rate) / 4
	}
	l.rate = rate
	if least := 2 * allowance(t); horizon < least {
		horizon = least
	}
	return int64(rate*float64(horizon)/1e6) + fewest, l.Limit.Capacity()
}

// earlyLow is the Low of an early lease that has got units. The caller holds the shard's mutex.
func earlyLow(t *Set, l *Lease) int64 {
	low := int64(l.rate*float64(allowance(t))/1e6) + 1
	if low < l.size/2 {
		low = l.size / 2
	}
	if low >= l.size {
		low = l.size - 1
	}
	return low
}

// updateEarly sets for how long hits without units are refused: for a while if an answer says that nothing is left. The
// caller holds the shard's mutex.
func updateEarly(t *Set, l *Lease, a *Answer, now int64) {
	l.dryUntil = 0
	if a.Free > 0 {
		return
	}
	l.refusal = a.Refusal
	l.refusedAt = now
	l.dryUntil = now + probe(t) + 2*allowance(t)
}

// refused refuses a hit without units, if the last answer of the database said that nothing is left, and asks for units
// that have become free. The caller holds the shard's mutex.
func refused(t *Set, l *Lease, h *ratelimit.Hit, now int64, d *ratelimit.Decision) bool {
	if l == nil || now >= l.dryUntil || h.Apart || h.Peek || h.Cost > h.Limit.Capacity() {
		return false
	}
	l.Used += h.Cost
	want(t, l, now)
	*d = l.refusal
	d.Source = ratelimit.FromBlocked
	d.RetryAfter -= time.Duration(now-l.refusedAt) * time.Microsecond
	if least := time.Duration(allowance(t)) * time.Microsecond; d.RetryAfter < least {
		d.Reset = d.Reset.Add(least - d.RetryAfter)
		d.RetryAfter = least
	}
	return true
}
