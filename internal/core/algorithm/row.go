package algorithm

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// Row is the state of one key in a table. The zero Row is the state of a key without a row.
type Row struct {
	Count     int64
	PrevCount int64
	Start     int64 // window_start; 0 is NULL
	Tokens    float64
	HasTokens bool
	Refill    int64   // last_refill; 0 is NULL
	Remainder int64   // see GCRA and Settle
	Hits      []int64 // times, oldest first
	Slots     int64   // see InFlight
	Held      int64   // the units that running requests hold, see reserve.go
	Expires   int64   // expires_at; from then on, the row has the same effect as no row
}

// Blank reports whether the row has the same effect as no row at any time.
func (r *Row) Blank() bool {
	return r.Start == 0 && !r.HasTokens && r.Refill == 0 && len(r.Hits) == 0 && r.Slots == 0 &&
		r.Held == 0
}

// Expired reports whether the row can be deleted.
func (r *Row) Expired(now int64) bool { return r.Expires <= now && r.Slots == 0 && r.Held == 0 }

// clockSlack is the tolerance, in microseconds, for statements that lock a row in another order than they
// read the clock. The SQL steps use the same number.
const clockSlack = 10 * 1000000

// rowTime returns the latest time that a charge under a limit has written into a row: the start of the
// window, the last refill, or the newest hit. length is the length of the window, or the time in which an
// empty bucket fills. Both are 0 if the row has no such time.
func rowTime(l *ratelimit.Limit, r *Row) (at, length int64) {
	switch {
	case l.Calendar != ratelimit.NoCalendar:
		return r.Start, r.Expires - r.Start
	case l.Algorithm == ratelimit.FixedWindow || l.Algorithm == ratelimit.SlidingWindow:
		return r.Start, window(l)
	case l.Algorithm == ratelimit.SlidingLog && len(r.Hits) > 0:
		return r.Hits[len(r.Hits)-1], window(l)
	case (l.Algorithm == ratelimit.TokenBucket || l.Algorithm == ratelimit.GCRA) && r.HasTokens:
		return r.Refill, fillTime(l)
	}
	return 0, 0
}

// countsAsNew reports whether the time of a row is ahead of now by more than its length plus clockSlack. Only
// a wrong clock can have written such a time. The SQL steps first compare the time with now, or with the end
// of a window, which is cheaper and usually sufficient.
func countsAsNew(l *ratelimit.Limit, r *Row, now int64) bool {
	at, length := rowTime(l, r)
	return at > now+clockSlack+length
}

// View is a row at a time, under a limit.
type View struct {
	Limit *ratelimit.Limit
	Row   Row
	Now   int64

	Free, Reset int64 // the results of Definition.Peek, set by Definition.PeekAll
}
