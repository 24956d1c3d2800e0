package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// refusal is a row as it was when it refused a hit, or when it had too little left for a further hit. Since
// then, other clients can only have used more of its quota. So a hit that does not fit into this row at the
// current time is refused from memory, with the RetryAfter that the database would return if no other hit
// came. A smaller hit that may fit goes to the database.
//
// Only a refund or a reset can make a refusal wrong. This process clears the refusal after its own refunds
// and resets. Refunds and resets of other processes take effect within Trust, because a refusal is used for
// no longer. During an outage a refusal is used until the hit would pass.
//
// A refusal also makes transactions peek at the row before they charge it. Because a busy row refuses again,
// a refusal is kept for at least Trust.
//
// A refusal is immutable. Its times are those of Now, except for view.Now.
type refusal struct {
	view         algorithm.View // the row, as the limit saw it at the server's time view.Now
	cost         int64          // the refused cost
	refusedAt    int64
	trustedUntil int64
	passesAt     int64 // the time at which the refused cost passes; refusedAt if it refuses no hits
	expiresAt    int64
}

// Trust bounds the use of a refusal while the database answers, in microseconds.
const Trust = int64(time.Second / time.Microsecond)

// Refuses reports whether a remembered refusal of a row refuses a hit. If so, it sets the decision. During an
// outage, Refuses also uses a refusal after trustedUntil.
func Refuses(s *Set, r *Cached, h *ratelimit.Hit, outage bool, d *ratelimit.Decision) bool {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	refused := r.refusal
	stripe.Mu.Unlock()
	if refused == nil {
		return false
	}
	now := Now(s)
	if now >= refused.passesAt || now >= refused.trustedUntil && !outage ||
		!h.Limit.Equal(refused.view.Limit) { // a reload makes new limits
		return false
	}
	serverNow := refused.view.Now + now - refused.refusedAt
	if h.Cost < refused.cost && algorithm.Fits(h.Limit, &refused.view.Row, serverNow, h.Cost) {
		return false
	}
	*d = algorithm.Refused(h.Limit, &refused.view.Row, serverNow, h.Cost)
	d.Source = ratelimit.FromRemembered
	return true
}

// RememberRefusal remembers that a row refuses a cost with the RetryAfter wait, unless wait is 0 or Never.
// sequence is the Set.Sequence of the batch. The refusal of a limit with leases is trusted only for a
// horizon, because another process may refund units at any time. Limits with the algorithm InFlight refuse no
// hits from memory, because their requests may end at any time.
func RememberRefusal(s *Set, id RowID, view *algorithm.View, cost int64, wait time.Duration, sequence int64) {
	if wait <= 0 || wait == ratelimit.Never {
		return
	}
	if !s.options.Refusals || view.Limit.Algorithm == ratelimit.InFlight {
		wait = 0
	}
	trust := Trust
	if horizon := Horizon(s, view.Limit); horizon > 0 {
		trust = horizon
	}
	now := Now(s)
	refused := &refusal{view: *view, cost: cost, refusedAt: now, trustedUntil: now + trust,
		passesAt: now + int64(wait/time.Microsecond), expiresAt: now + Trust}
	if refused.expiresAt < refused.passesAt {
		refused.expiresAt = refused.passesAt
	}
	withCached(s, id, true, func(r *Cached) {
		if s.Stripes[r.stripeIndex].cleared[s.Hash(s.Seed, id.Key)/StripeCount%8] <= sequence {
			r.refusal = refused
		}
	})
}

// RefusedLately reports whether any of the rows, which may be nil, has a refusal.
func RefusedLately(s *Set, rows []*Cached) bool {
	for _, r := range rows {
		if r == nil {
			continue
		}
		stripe := s.Stripes[r.stripeIndex]
		stripe.Mu.Lock()
		refused := r.refusal
		stripe.Mu.Unlock()
		if refused != nil && Now(s) < refused.expiresAt {
			return true
		}
	}
	return false
}

// ClearRefusals clears the refusals of rows after refunds or resets.
func ClearRefusals(s *Set, ids ...RowID) {
	for _, id := range ids {
		hash := s.Hash(s.Seed, id.Key)
		stripe := s.Stripes[hash%StripeCount]
		stripe.Mu.Lock()
		stripe.cleared[hash/StripeCount%8] = atomic.AddInt64(&s.Sequence, 1)
		if r := stripe.Rows[id]; r != nil {
			r.refusal = nil
			refreshCached(s, stripe, r)
		}
		stripe.Mu.Unlock()
	}
}
