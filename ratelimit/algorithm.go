package ratelimit

import (
	"math"
	"math/bits"
)

// algorithm is one way to count: its step in Go and the same step in SQL. The
// two are held equal by tests; the Go step is the definition.
//
// Times are microseconds since the Unix epoch. now may lie before what the row
// holds, where a clock was set back: the row's own time then counts.
//
// These are functions, not methods, as is all that runs for every hit: to an
// interpreter (see traefikplugin) the call of a method costs five of a function.
type algorithm struct {
	// take admits as many of n hits of the given cost (1 ≤ cost ≤ capacity) as
	// fit, and returns how many. Where none fits the row stays as it was.
	take func(l *Limit, r *row, now, n, cost int64) int64

	// refund gives cost (≥ 1) back, never beyond the full quota. A claim that
	// is not nil says what is given back: it is void once the state that it was
	// taken from is gone, so that a late one never admits too much.
	refund func(l *Limit, r *row, now, cost int64, c *claim)

	// look returns what is left of the quota at now, negative if it is
	// overdrawn, and when the full quota is back if nobody comes.
	look func(l *Limit, r *row, now int64) (free, reset int64)

	// lookAll sets free and reset of many items to what look returns for each.
	// Nil is to call look.
	lookAll func(items []*item)

	// retry returns the earliest time at which a hit would pass, of a cost (up
	// to capacity) that does not pass at now.
	retry func(l *Limit, r *row, now, cost int64) int64

	// claim names what a granted hit was taken from, given the row after it.
	claim func(l *Limit, r *row, now int64) claim

	// sql is the step as Postgres runs it.
	sql *stepSQL
}

// algorithms are the implementations, by Algorithm.
var algorithms = []*algorithm{&slidingWindow, &fixedWindow, &tokenBucket, &slidingLog, &gcra, &calendarWindow}

// calendarSteps is the place in algorithms of FixedWindow on the calendar, whose
// windows are not all of one length.
const calendarSteps = GCRA + 1

// stepsOf is a limit's place in algorithms.
func stepsOf(l *Limit) Algorithm {
	if l.Calendar != NoCalendar {
		return calendarSteps
	}
	return l.Algorithm
}

// capacity is l.Capacity(), and window its Window in microseconds, the unit of
// all arithmetic here and the resolution of Postgres's timestamps.
func capacity(l *Limit) int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Events
}

func window(l *Limit) int64 { return int64(l.Window) / 1000 }

// lookAll looks at the rows of one statement's items.
func lookAll(items []*item) {
	of := algorithms[stepsOf(items[0].limit)]
	var l *Limit
	quota := int64(0)
	for _, it := range items {
		if it.limit != l {
			l = it.limit
			quota = capacity(l)
		}
		it.quota = quota
	}
	if of.lookAll != nil {
		of.lookAll(items)
		return
	}
	for _, it := range items {
		free, reset := of.look(it.limit, &it.row, it.now)
		it.free = free
		it.reset = reset
	}
}

// row is a row of either table: the state of one key. The zero row is a key
// that was never hit.
type row struct {
	count     int64
	prevCount int64
	start     int64 // window_start; 0 is NULL
	tokens    float64
	hasTokens bool
	refill    int64   // last_refill; 0 is NULL
	remainder int64   // what refill lacks to the exact time, see gcra
	hits      []int64 // oldest first
	expires   int64   // expires_at: from then on the row says no more than no row
}

// blank reports whether the row is as if the key had never been hit.
func (r *row) blank() bool {
	return r.start == 0 && !r.hasTokens && r.refill == 0 && len(r.hits) == 0
}

// claim names the state from which a hit was granted. What it holds is each
// algorithm's own affair.
type claim struct {
	at   int64
	room int64
}

// fit is how many of n hits of the given cost fit into free.
func fit(free, n, cost int64) int64 {
	if free < cost {
		return 0
	}
	if granted := free / cost; granted < n {
		return granted
	}
	return n
}

func smaller(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

func larger(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

// mulDiv returns a·b/c for 0 ≤ a, 0 ≤ b, 0 < c, rounded down, or up, by way of
// 128 bits. A quotient beyond int64 is the largest int64.
func mulDiv(a, b, c int64, up bool) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if up {
		var carry uint64
		low, carry = bits.Add64(low, uint64(c-1), 0)
		high += carry
	}
	if high >= uint64(c) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	if quotient > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(quotient)
}
