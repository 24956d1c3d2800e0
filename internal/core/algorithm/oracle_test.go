package algorithm_test

import (
	"math/big"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The oracle says what a limit admits, from the definitions of the algorithms and a log of charges and
// refunds. It keeps no state and rounds nothing: each answer reads the whole log again. It uses no rows,
// steps or SQL.

// entry is a line of a key's log: an admitted hit, or a refund if the cost is below 0. A reset begins a new
// log.
type entry struct {
	at   int64 // microseconds since the Unix epoch
	cost int64
}

// free returns how much cost fits at a time that is not before the log's end. A hit passes if it costs no
// more.
func free(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	switch {
	case l.Calendar != ratelimit.NoCalendar:
		return freeOfCalendar(l, log, at)
	case l.Algorithm == ratelimit.FixedWindow:
		return freeOfFixedWindow(l, log, at)
	case l.Algorithm == ratelimit.SlidingLog:
		return freeOfSlidingLog(l, log, at)
	case l.Algorithm == ratelimit.TokenBucket && l.Capacity() >= l.Events:
		return freeOfTokenBucket(l, log, at)
	case l.Algorithm == ratelimit.TokenBucket || l.Algorithm == ratelimit.GCRA:
		return freeOfGCRA(l, log, at)
	}
	return freeOfSlidingWindow(l, log, at)
}

// freeOfFixedWindow: a window begins with the first hit after the previous window ended, and admits Events.
func freeOfFixedWindow(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
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

// freeOfCalendar: charges in the same day, week, month or year count together. A month or a year is named by
// its first day.
func freeOfCalendar(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	zone, err := time.LoadLocation(l.Zone)
	if err != nil {
		panic(err)
	}
	name := func(at int64) [3]int {
		local := time.UnixMicro(at).In(zone)
		switch l.Calendar {
		case ratelimit.Day:
			return [3]int{local.Year(), int(local.Month()), local.Day()}
		case ratelimit.Week:
			year, week := local.ISOWeek()
			return [3]int{year, week}
		}
		day := time.Date(local.Year(), local.Month(), local.Day(), 12, 0, 0, 0, time.UTC)
		for !beginsPeriod(l, day) {
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

// beginsPeriod reports whether a month or a year begins on a day: on that of the anchor, or on the last of a
// month that does not have that day.
func beginsPeriod(l *ratelimit.Limit, day time.Time) bool {
	anchor := time.Unix(l.Anchor*24*3600, 0).UTC()
	if l.Calendar == ratelimit.Year && day.Month() != anchor.Month() {
		return false
	}
	isLast := day.AddDate(0, 0, 1).Day() == 1
	return day.Day() == anchor.Day() || isLast && day.Day() < anchor.Day()
}

// freeOfSlidingLog: the hits younger than a window count. A refund removes the newest.
func freeOfSlidingLog(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	left := l.Events
	for _, e := range net(log) {
		if at-e.at < l.Window.Microseconds() {
			left -= e.cost
		}
	}
	return big.NewRat(left, 1)
}

// freeOfSlidingWindow: Events − prev_count·(1 − elapsed/Window) − count. The windows follow one another from
// the first hit on. A hit that comes two or more windows after the last window with a hit begins anew.
func freeOfSlidingWindow(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	window := l.Window.Microseconds()
	start := slidingStart(l, log, at)
	count, previous := int64(0), int64(0)
	for _, e := range net(log) {
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

// slidingStart returns when the window that contains a time began.
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

// resets returns Reset of a hit that passes, and whether the full quota is back later than that.
func resets(l *ratelimit.Limit, log []entry, at int64) (int64, bool) {
	if remaining(l, log, at) == l.Capacity() {
		return at, true
	}
	switch l.Algorithm {
	case ratelimit.SlidingWindow:
		return slidingStart(l, log, at) + l.Window.Microseconds(), true
	case ratelimit.SlidingLog:
		for _, e := range net(log) {
			if e.cost > 0 && at-e.at < l.Window.Microseconds() {
				return e.at + l.Window.Microseconds(), true
			}
		}
	}
	return 0, false
}

// freeOfTokenBucket: the bucket is full before the first hit, gains Events at the end of each Window counted
// from it, and holds no more than Capacity.
func freeOfTokenBucket(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	full := big.NewInt(l.Capacity())
	tokens := new(big.Int).Set(full)
	window := l.Window.Microseconds()
	open, begun, gained := false, int64(0), int64(0)
	to := func(now, given int64) {
		if !open {
			return
		}
		more := new(big.Int).Mul(big.NewInt((now-begun)/window-gained), big.NewInt(l.Events))
		gained = (now - begun) / window
		for _, n := range []*big.Int{more, big.NewInt(given)} {
			if tokens.Add(tokens, n); tokens.Cmp(full) > 0 {
				tokens.Set(full)
			}
		}
	}
	for _, e := range log {
		if !open && e.cost >= 0 {
			open, begun = true, e.at
		}
		to(e.at, -e.cost)
	}
	to(at, 0)
	return new(big.Rat).SetInt(tokens)
}

// freeOfGCRA: a hit moves the theoretical arrival time (TAT), or now if that is later, on by its cost times
// the interval Window/Events. It passes if the TAT is then no more than Capacity intervals ahead.
func freeOfGCRA(l *ratelimit.Limit, log []entry, at int64) *big.Rat {
	interval := big.NewRat(l.Window.Microseconds(), l.Events)
	ahead := new(big.Rat) // the TAT, as from the entry before
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

// net is a log without refunds: each refund takes from the newest hits before it.
func net(log []entry) []entry {
	var hits []entry
	for _, e := range log {
		if e.cost >= 0 {
			hits = append(hits, e)
			continue
		}
		back := -e.cost
		for i := len(hits) - 1; i >= 0 && back > 0; i-- {
			part := back
			if part > hits[i].cost {
				part = hits[i].cost
			}
			hits[i].cost -= part
			back -= part
		}
	}
	return hits
}

// remaining is free in whole hits, floored at 0.
func remaining(l *ratelimit.Limit, log []entry, at int64) int64 {
	left := free(l, log, at)
	if left.Sign() < 0 {
		return 0
	}
	return new(big.Int).Quo(left.Num(), left.Denom()).Int64()
}
