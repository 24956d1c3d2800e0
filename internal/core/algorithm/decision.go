package algorithm

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Decide decides the hits of one request on rows in memory: all are charged, or none.
// rows[i] is the row of hits[i] and nows[i] the time that counts for it. Refunds (negative
// costs) are made in any case, and hits apart are decided by themselves. Decide writes a
// decision for each hit, as the rows are afterwards, and reports whether all hits that are not
// apart are allowed.
func Decide(hits []ratelimit.Hit, rows []*Row, nows []int64, decisions []ratelimit.Decision) bool {
	before := make([]Row, len(hits))
	all := true
	for i := range hits {
		before[i] = *rows[i]
		decisions[i].Allowed = charge(&hits[i], rows[i], nows[i])
		all = all && (decisions[i].Allowed || hits[i].Apart)
	}
	if !all {
		for i := len(hits) - 1; i >= 0; i-- {
			if decisions[i].Allowed && hits[i].Cost > 0 && !hits[i].Apart {
				*rows[i] = before[i]
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
	return all
}

// Refunded is how much a hit with a negative cost gives back. No quota is larger than
// MaxEvents, and within that bound sums of refunds cannot overflow.
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
	return Of(h.Limit).Take(h.Limit, r, now, 1, h.Cost) == 1
}

// Fits reports whether a cost would pass.
func Fits(l *ratelimit.Limit, r *Row, now, cost int64) bool {
	free, _ := Of(l).Look(l, r, now)
	return free >= cost
}

// Admitted is the decision on a hit that is allowed, given the row after the hit.
func Admitted(l *ratelimit.Limit, r *Row, now int64) ratelimit.Decision {
	free, reset := Of(l).Look(l, r, now)
	return ratelimit.Decision{Allowed: true, Limit: l.Capacity(), Remaining: Remaining(l.Capacity(), free),
		Reset: time.UnixMicro(reset), DecidedAt: ChargedAt(l, r, now)}
}

// ChargedAt is the time in Definition.Adjust of a charge that was made at now, given the row after the charge. The
// clock of a statement can be behind the row, if a statement with a later clock had the row first. Then the charge is
// in the window that has begun since, after the last refill of a bucket, or at the time of the last hit of a log.
func ChargedAt(l *ratelimit.Limit, r *Row, now int64) int64 {
	switch {
	case l.Algorithm == ratelimit.FixedWindow || l.Algorithm == ratelimit.SlidingWindow:
		return larger(now, r.Start)
	case l.Algorithm == ratelimit.TokenBucket && r.HasTokens:
		return larger(now, r.Refill)
	case l.Algorithm == ratelimit.SlidingLog && len(r.Hits) > 0:
		return larger(now, r.Hits[len(r.Hits)-1])
	}
	return now
}

// Refused is the decision on a hit that is not allowed.
func Refused(l *ratelimit.Limit, r *Row, now, cost int64) ratelimit.Decision {
	d := Admitted(l, r, now)
	d.Allowed = false
	d.DecidedAt = now
	d.RetryAfter = ratelimit.Never
	d.Reset = time.Time{}
	if cost <= d.Limit {
		d.RetryAfter = RetryAfter(Of(l).Passes(l, r, now, cost) - now)
	}
	if d.RetryAfter != ratelimit.Never {
		d.Reset = time.UnixMicro(now + int64(d.RetryAfter/time.Microsecond))
	}
	return d
}

// Remaining is Decision.Remaining for what is left of a quota.
func Remaining(quota, free int64) int64 { return larger(0, smaller(free, quota)) }

// RetryAfter is Decision.RetryAfter for a wait in microseconds: at least one microsecond,
// at most what a Duration holds.
func RetryAfter(wait int64) time.Duration {
	if wait < 1 {
		wait = 1
	}
	if wait > int64(ratelimit.Never)/1000 {
		return ratelimit.Never
	}
	return time.Duration(wait) * time.Microsecond
}
