package algorithm

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Decide decides the hits of one request on rows in memory. It charges all hits or none. There are two
// exceptions: refunds (negative costs) always take effect, and hits that are Independent are decided
// independently. rows[i] is the row of hits[i], and nows[i] its time. Decide sets decisions from the final
// state of the rows, and reports whether all hits that are not Independent are allowed.
func Decide(hits []ratelimit.Hit, rows []*Row, nows []int64, decisions []ratelimit.Decision) bool {
	saved := make([]Row, len(hits))
	allowed := true
	for i := range hits {
		saved[i] = *rows[i]
		decisions[i].Allowed = charge(&hits[i], rows[i], nows[i])
		allowed = allowed && (decisions[i].Allowed || hits[i].Independent)
	}
	if !allowed {
		for i := len(hits) - 1; i >= 0; i-- {
			if decisions[i].Allowed && hits[i].Cost > 0 && !hits[i].Independent {
				*rows[i] = saved[i]
			}
		}
	}
	for i := range hits {
		h := &hits[i]
		if decisions[i].Allowed {
			decisions[i] = Admitted(h.Limit, rows[i], nows[i])
		} else {
			decisions[i] = Refused(h.Limit, rows[i], nows[i], h.Cost)
		}
	}
	return allowed
}

// Refunded returns the units that a hit with a negative Cost refunds, at most MaxEvents. No quota is larger,
// and sums of refunds within this bound cannot overflow.
func Refunded(h *ratelimit.Hit) int64 {
	if h.Cost < -ratelimit.MaxEvents {
		return ratelimit.MaxEvents
	}
	return -h.Cost
}

// charge applies one hit to a row and reports whether it is allowed.
func charge(h *ratelimit.Hit, r *Row, now int64) bool {
	switch {
	case h.Cost < 0:
		Of(h.Limit).Adjust(h.Limit, r, now, Refunded(h), 0)
		return true
	case h.Cost > h.Limit.Capacity():
		return false
	case h.Peek:
		return Fits(h.Limit, r, now, h.Cost)
	}
	return Of(h.Limit).Charge(h.Limit, r, now, 1, h.Cost) == 1
}

// Fits reports whether a hit of the given cost would pass at now.
func Fits(l *ratelimit.Limit, r *Row, now, cost int64) bool {
	free, _ := Of(l).Peek(l, r, now)
	return free >= cost || l.Reserves && free > 0
}

// Admitted returns the decision on an allowed hit. r is the row after the hit.
func Admitted(l *ratelimit.Limit, r *Row, now int64) ratelimit.Decision {
	free, reset := Of(l).Peek(l, r, now)
	return ratelimit.Decision{Allowed: true, Quota: l.Capacity(), Remaining: Remaining(l.Capacity(), free),
		Reset: time.UnixMicro(reset), DecidedAt: ChargedAt(l, r, now)}
}

// ChargedAt returns the time to pass to Definition.Adjust for a charge at now. r is the row after the charge.
// If a statement with a later clock locked the row first, now can be earlier than the times of the row.
// ChargedAt then returns the start of the row's current window, its last refill, or its last hit. For a row
// that counts as new, because it is too far ahead, ChargedAt returns now.
func ChargedAt(l *ratelimit.Limit, r *Row, now int64) int64 {
	at, _ := rowTime(l, r)
	if at <= now || countsAsNew(l, r, now) {
		return now
	}
	return at
}

// Refused returns the decision on a hit of the given cost that is not allowed.
func Refused(l *ratelimit.Limit, r *Row, now, cost int64) ratelimit.Decision {
	d := Admitted(l, r, now)
	d.Allowed = false
	d.DecidedAt = now
	d.RetryAfter = ratelimit.Never
	d.Reset = time.Time{}
	if cost <= d.Quota {
		d.RetryAfter = RetryAfter(Of(l).Passes(l, r, now, cost) - now)
	}
	if d.RetryAfter != ratelimit.Never {
		d.Reset = time.UnixMicro(now + int64(d.RetryAfter/time.Microsecond))
	}
	return d
}

// Remaining returns Decision.Remaining: free, bounded by 0 and quota.
func Remaining(quota, free int64) int64 { return larger(0, smaller(free, quota)) }

// RetryAfter returns Decision.RetryAfter for a wait in microseconds: at least one microsecond, and Never if
// the wait does not fit into a Duration.
func RetryAfter(wait int64) time.Duration {
	if wait < 1 {
		wait = 1
	}
	if wait > int64(ratelimit.Never)/1000 {
		return ratelimit.Never
	}
	return time.Duration(wait) * time.Microsecond
}
