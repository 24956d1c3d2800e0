package algorithm

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// An adjustment gives back what was charged (a refund, units of a lease that were not used, a settlement
// of a request that cost less), or charges more afterwards (a settlement of one that cost more). It belongs
// to the time of its charge: see Definition.Adjust.

// largestCount bounds what an adjustment makes of a count: the sum of two such counts fits into 64 bits.
const largestCount = int64(1) << 61

// counted is a count after cost was given back, or charged if it is below 0: then it is at most twice the
// quota, unless it was more before.
func counted(l *ratelimit.Limit, count, cost int64) int64 {
	if cost >= 0 {
		return larger(0, count-cost)
	}
	return larger(count, smaller(count-cost, smaller(2*l.Capacity(), largestCount)))
}

// countedSQL is counted of an SQL expression that is not below 0.
func countedSQL(count string) string {
	return "greatest(0, least(" + count + " - {cost}, greatest(" + count + ", least(2 * {quota}, 2305843009213693952))))"
}

// mostRefunded bounds the sum of refunds. No row holds as much.
const mostRefunded = int64(1) << 60

// AddRefund returns the sum of two refunds, neither of which is above mostRefunded. What is below 0 is charged.
func AddRefund(a, b int64) int64 { return larger(-mostRefunded, smaller(mostRefunded, a+b)) }

// drainedSince returns how much GCRA can have gained since a time: a token is a Window in microseconds of units, and
// Events units come each microsecond. over reports a full quota: what was charged then does not count any more.
func drainedSince(l *ratelimit.Limit, now, at int64) (units int64, over bool) {
	if at == 0 {
		return 0, false
	}
	elapsed := larger(0, now-at)
	if elapsed >= fills(l) {
		return 0, true
	}
	return elapsed * l.Events, false
}

// The same in SQL: the units, and whether it is not over.
const (
	drainedSQL    = "coalesce(greatest(0, (date_part('epoch', {now} - {claimed}) * 1000000)::bigint) * {events}, 0)"
	notDrainedSQL = "coalesce({now} < {claimed} + " + gcraFillsSQL + " * interval '1 microsecond', true)"
)

// WindowOf tells the windows of a row apart, given when a hit was charged and the Reset of its decision:
// adjustments of charges in one window can be added up.
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
