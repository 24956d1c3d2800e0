package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// refusal is a row as it was when it refused a hit. Since then, other clients can only have used more of its
// quota. So a hit that does not fit into this row at the current time is refused from memory, with the
// RetryAfter that the database would return if no other hit came. A smaller hit that may fit goes to the
// database.
//
// Only a refund or a reset can make a refusal wrong. This process clears the refusal after its own refunds
// and resets. Refunds and resets of other processes take effect within Trust, because a refusal is used for
// no longer. During an outage it is used until the hit would pass.
//
// A refusal is immutable. Its times are microseconds of the server's clock, or of Now.
type refusal struct {
	view         algorithm.View // the row, as the limit saw it at the server's time view.Now
	cost         int64          // the refused cost
	passesAt     int64          // the server's time from which the refused cost passes
	refusedAt    int64          // the time of the refusal, of Now
	trustedUntil int64          // the time of Now until which the refusal is trusted, at most end
}

// Trust bounds the use of a refusal while the database answers, in microseconds.
const Trust = int64(time.Second / time.Microsecond)

// end returns the time of Now at which the refused cost passes.
func (r *refusal) end() int64 { return r.refusedAt + r.passesAt - r.view.Now }

// NextSequence returns a sequence number for a new batch, which passes it to RememberRefusal. Refunds and
// resets, which clear refusals, take numbers from the same sequence. A batch must not remember a refusal that
// is older than a refund or reset of the row. So RememberRefusal ignores the refusal if Stripe.cleared has a
// higher number than the batch.
func NextSequence(s *Set) int64 { return atomic.AddInt64(&s.sequence, 1) }

// clearedIndex returns the index of a key in Stripe.cleared.
func clearedIndex(s *Set, key string) uint64 { return s.Hash(s.Seed, key) / StripeCount % 8 }

// Refuses reports whether a remembered refusal of a row refuses a hit. If so, it sets the decision. During an
// outage it also uses refusals after trustedUntil.
func Refuses(s *Set, r *Row, h *ratelimit.Hit, outage bool, d *ratelimit.Decision) bool {
	stripe := s.Stripes[r.stripeIndex]
	stripe.Mu.Lock()
	refused := r.refusal
	stripe.Mu.Unlock()
	if refused == nil {
		return false
	}
	now := Now(s)
	if now >= refused.end() || now >= refused.trustedUntil && !outage ||
		!h.Limit.Equal(refused.view.Limit) { // a reload makes new limits
		return false
	}
	serverNow := refused.view.Now + now - refused.refusedAt
	if h.Cost < refused.cost && algorithm.Fits(h.Limit, &refused.view.Row, serverNow, h.Cost) {
		return false
	}
	*d = algorithm.Refused(h.Limit, &refused.view.Row, serverNow, h.Cost)
	d.Source = ratelimit.FromBlocked
	return true
}

// RememberRefusal remembers that a row refused a cost with the RetryAfter wait. sequence is the NextSequence
// of the batch. It ignores limits with the algorithm InFlight, because their requests may end at any time.
// The refusal of a limit with leases is trusted only for a horizon, because another process may refund units
// at any time.
func RememberRefusal(s *Set, id RowID, view *algorithm.View, cost int64, wait time.Duration, sequence int64) {
	if !s.options.Refusals || view.Limit.Algorithm == ratelimit.InFlight || wait <= 0 ||
		wait == ratelimit.Never {
		return
	}
	trusted := Trust
	if horizon := Horizon(s, view.Limit); horizon > 0 {
		trusted = horizon
	}
	now := Now(s)
	micros := int64(wait / time.Microsecond)
	refused := &refusal{view: *view, cost: cost, passesAt: view.Now + micros, refusedAt: now,
		trustedUntil: now + micros}
	if micros > trusted {
		refused.trustedUntil = now + trusted
	}
	withRow(s, id, true, func(stripe *Stripe, r *Row) {
		if stripe.cleared[clearedIndex(s, id.Key)] <= sequence {
			r.refusal = refused
		}
	})
}

// ClearRefusal clears the refusal of a row after a refund or a reset.
func ClearRefusal(s *Set, id RowID) {
	stripe := s.Stripes[s.Hash(s.Seed, id.Key)%StripeCount]
	stripe.Mu.Lock()
	defer stripe.Mu.Unlock()
	stripe.cleared[clearedIndex(s, id.Key)] = NextSequence(s)
	if r := stripe.Rows[id]; r != nil {
		r.refusal = nil
		refreshRow(s, stripe, r)
	}
}
