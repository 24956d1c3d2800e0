package algorithm

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// An adjustment is a refund, a release of a lease's unused units, or a settlement. A settlement refunds or
// charges the difference between the estimated and the actual cost of a request. An adjustment applies to the
// time of the original charge: see Definition.Adjust.

// maxCount bounds a count after an adjustment, so that the sum of two counts fits into 64 bits.
const maxCount = int64(1) << 61

// adjustedCount returns count after a refund of cost. A negative cost is charged even if it does not fit.
func adjustedCount(count, cost int64) int64 { return larger(0, smaller(maxCount, count-cost)) }

// adjustedCountSQL returns the SQL of adjustedCount. The expression count must not be negative.
func adjustedCountSQL(count string) string {
	return "greatest(0, least(" + count + " - {cost}, 2305843009213693952))"
}

// maxRefund bounds the sum of refunds. No row holds more.
const maxRefund = int64(1) << 60

// AddRefund returns a + b, bounded by ±maxRefund, which also bounds a and b. A negative refund is a charge.
func AddRefund(a, b int64) int64 { return larger(-maxRefund, smaller(maxRefund, a+b)) }

// drainedSince returns the units that a bucket has gained at most since a charge at the time at. If the
// bucket is refilled evenly, a token has Window (in microseconds) units, so that the bucket gains Events
// units in a microsecond. over reports that the charge no longer counts, because the bucket has become full,
// or because a token bucket has been refilled (see leaseOfBucket). If at is 0, nothing has drained.
func drainedSince(l *ratelimit.Limit, r *Row, now, at int64) (units int64, over bool) {
	elapsed := larger(0, now-at)
	switch {
	case at == 0:
		return 0, false
	case !evenly(l):
		return 0, at < r.Refill || now >= r.Refill+window(l)
	case elapsed >= fillTime(l):
		return 0, true
	}
	return elapsed * l.Events, false
}

// drainedSQL computes the units of drainedSince, and notDrainedSQL the negation of over.
const (
	drainedSQL = "coalesce(greatest(0, (date_part('epoch', {now} - {claimed}) * 1000000)::bigint) " +
		"* {events}, 0)"
	notDrainedSQL = "coalesce({now} < {claimed} + " + gcraFillTimeSQL + " * interval '1 microsecond', true)"
)

// WindowOf returns a number that identifies the window of a charge. at is the time of the charge, and reset
// the Reset of its decision. A caller may add up adjustments of charges in one window of a row.
func WindowOf(l *ratelimit.Limit, at, reset int64) int64 {
	switch d := Of(l); {
	case d.Lease != nil: // Reset is the end of a window
		w := window(l)
		return at - (w-larger(0, reset-at)%w)%w
	case l.Calendar != ratelimit.NoCalendar:
		return reset
	}
	return at
}
