package algorithm_test

import (
	"math/big"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The oracle computes the quota of a limit from the definition of its algorithm and a log of charges and
// refunds. It keeps no state and rounds nothing: each call reads the whole log again. It uses no rows, steps
// or SQL.

// entry is a line of a key's log: an admitted hit, or a refund if the cost is below 0. A reset starts a new
// log.
type entry struct {
	at   int64 // microseconds since the Unix epoch
	cost int64
}

// remaining returns the exact remaining quota at a time that is not before the end of the log. A hit passes
// if it costs no more.
func remaining(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	switch {
	case l.Calendar != ratelimit.NoCalendar:
		return remainingInCalendar(l, log, at)
	case l.Algorithm == ratelimit.FixedWindow:
		return remainingInFixedWindow(l, log, at)
	case l.Algorithm == ratelimit.SlidingLog:
		return remainingInSlidingLog(l, log, at)
	case l.Algorithm == ratelimit.TokenBucket && l.Capacity() >= l.Events:
		return remainingInTokenBucket(l, log, at)
	case l.Algorithm == ratelimit.TokenBucket || l.Algorithm == ratelimit.GCRA:
		return remainingInGCRA(l, log, at)
	}
	return remainingInSlidingWindow(l, log, at)
}

// remainingInFixedWindow returns what a window has left, which starts with the first hit after the end of the
// previous window, and admits Events.
func remainingInFixedWindow(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	window := l.Window.Microseconds()
	open, start, used := false, int64(0), int64(0)
	for _, e := range log {
		if open && e.at-start >= window {
			open, used = false, 0
		}
		if !open && e.cost >= 0 {
			open, start = true, e.at
		}
		used = max(0, used+e.cost)
	}
	if !open || at-start >= window {
		used = 0
	}
	return big.NewRat(l.Events-used, 1)
}

// remainingInCalendar returns what a day, week, month or year has left: charges in it count together. The
// first day identifies a month or a year.
func remainingInCalendar(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	timeZone, err := time.LoadLocation(l.TimeZone)
	if err != nil {
		panic(err)
	}
	name := func(at int64) [3]int {
		local := time.UnixMicro(at).In(timeZone)
		switch l.Calendar {
		case ratelimit.Day:
			return [3]int{local.Year(), int(local.Month()), local.Day()}
		case ratelimit.Week:
			year, week := local.ISOWeek()
			return [3]int{year, week}
		}
		day := time.Date(local.Year(), local.Month(), local.Day(), 12, 0, 0, 0, time.UTC)
		for !startsPeriod(l, day) {
			day = day.AddDate(0, 0, -1)
		}
		return [3]int{day.Year(), int(day.Month()), day.Day()}
	}
	used := int64(0)
	for _, e := range log {
		if name(e.at) == name(at) {
			used = max(0, used+e.cost)
		}
	}
	return big.NewRat(l.Events-used, 1)
}

// startsPeriod reports whether a month or a year starts on a day. It starts on the anchor's day, or on the
// last day of a shorter month.
func startsPeriod(l *ratelimit.Limit, day time.Time) bool {
	anchor := time.Unix(l.Anchor*24*3600, 0).UTC()
	if l.Calendar == ratelimit.Year && day.Month() != anchor.Month() {
		return false
	}
	isLast := day.AddDate(0, 0, 1).Day() == 1
	return day.Day() == anchor.Day() || isLast && day.Day() < anchor.Day()
}

// remainingInSlidingLog returns what the hits younger than a window leave. A refund removes the newest.
func remainingInSlidingLog(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	left := l.Events
	for _, e := range withoutRefunds(log) {
		if at-e.at < l.Window.Microseconds() {
			left -= e.cost
		}
	}
	return big.NewRat(left, 1)
}

// remainingInSlidingWindow returns Events − prev_count·(1 − elapsed/Window) − count. The windows
// follow one another from the first hit on. A hit two or more windows later starts a new sequence.
func remainingInSlidingWindow(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	window := l.Window.Microseconds()
	start := slidingStart(l, log, at)
	count, previous := int64(0), int64(0)
	for _, e := range withoutRefunds(log) {
		switch {
		case e.at >= start:
			count += e.cost
		case e.at >= start-window:
			previous += e.cost
		}
	}
	weight := new(big.Rat).Sub(big.NewRat(1, 1), big.NewRat(at-start, window))
	left := new(big.Rat).Mul(big.NewRat(previous, 1), weight)
	return left.Sub(big.NewRat(l.Events-count, 1), left)
}

// slidingStart returns the start of the window that contains a time.
func slidingStart(l *ratelimit.Limit, log []entry, at int64) int64 {
	window := l.Window.Microseconds()
	open, start := false, int64(0)
	for _, e := range append(log[:len(log):len(log)], entry{at, 0}) {
		switch {
		case e.cost < 0:
		case !open || e.at-start >= 2*window:
			open, start = true, e.at
		case e.at-start >= window:
			start += window
		}
	}
	return start
}

// resetTime returns the Reset of a hit that passes. It returns false if Reset is instead the time when the
// full quota is back.
func resetTime(l *ratelimit.Limit, log []entry, at int64) (int64, bool) {
	if wholeRemaining(l, log, at) == l.Capacity() {
		return at, true
	}
	switch l.Algorithm {
	case ratelimit.SlidingWindow:
		return slidingStart(l, log, at) + l.Window.Microseconds(), true
	case ratelimit.SlidingLog:
		for _, e := range withoutRefunds(log) {
			if e.cost > 0 && at-e.at < l.Window.Microseconds() {
				return e.at + l.Window.Microseconds(), true
			}
		}
	}
	return 0, false
}

// remainingInTokenBucket returns the tokens of a bucket, which is full before the first hit, gains Events at
// the end of each Window since that hit, and holds at most Capacity.
func remainingInTokenBucket(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	full := big.NewInt(l.Capacity())
	tokens := new(big.Int).Set(full)
	window := l.Window.Microseconds()
	open, start, gained := false, int64(0), int64(0)
	advance := func(now, refunded int64) {
		if !open {
			return
		}
		more := new(big.Int).Mul(big.NewInt((now-start)/window-gained), big.NewInt(l.Events))
		gained = (now - start) / window
		for _, n := range []*big.Int{more, big.NewInt(refunded)} {
			if tokens.Add(tokens, n); tokens.Cmp(full) > 0 {
				tokens.Set(full)
			}
		}
	}
	for _, e := range log {
		if !open && e.cost >= 0 {
			open, start = true, e.at
		}
		advance(e.at, -e.cost)
	}
	advance(at, 0)
	return new(big.Rat).SetInt(tokens)
}

// remainingInGCRA returns how many hits pass: each moves the theoretical arrival time (TAT), or now if that
// is later, forward by its cost times the interval Window/Events. The hit passes if the new TAT is at most
// Capacity intervals ahead.
func remainingInGCRA(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	interval := big.NewRat(l.Window.Microseconds(), l.Events)
	ahead := new(big.Rat) // the time from the previous entry to the TAT
	for i, e := range append(log[:len(log):len(log)], entry{at, 0}) {
		if i > 0 {
			ahead.Sub(ahead, big.NewRat(e.at-log[i-1].at, 1))
		}
		if ahead.Sign() < 0 {
			ahead.SetInt64(0)
		}
		ahead.Add(ahead, new(big.Rat).Mul(big.NewRat(e.cost, 1), interval))
		if ahead.Sign() < 0 {
			ahead.SetInt64(0)
		}
	}
	return ahead.Sub(big.NewRat(l.Capacity(), 1), ahead.Quo(ahead, interval))
}

// withoutRefunds returns a log with each refund subtracted from the newest hits before it.
func withoutRefunds(log []entry) []entry {
	var hits []entry
	for _, e := range log {
		if e.cost >= 0 {
			hits = append(hits, e)
			continue
		}
		refund := -e.cost
		for i := len(hits) - 1; i >= 0 && refund > 0; i-- {
			part := min(refund, hits[i].cost)
			hits[i].cost -= part
			refund -= part
		}
	}
	return hits
}

// wholeRemaining returns remaining, rounded down and at least 0.
func wholeRemaining(l *ratelimit.Limit, log []entry, at int64) int64 {
	left := remaining(l, log, at)
	return max(0, new(big.Int).Quo(left.Num(), left.Denom()).Int64())
}
