package lease

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// refusal is the state of a row that refused a hit. While a client keeps sending to a limit that is used up,
// the answer is known: other clients can only have taken more since. So a cost that does not fit into the row
// as it was then, at the time that it is now, is refused without asking the database, with the RetryAfter
// that the database would give if no other hit came. A smaller cost that would fit is asked about.
//
// Only a refund or a reset can make a refusal wrong. One that this process makes clears the refusal here. One
// that another process makes is noticed within Trust, because a refusal is trusted for no longer, unless no
// decision can be had: then it is trusted until the hit would pass.
//
// A refusal does not change. Its times are microseconds of the server's clock, or of Now.
type refusal struct {
	view     algorithm.View // the row, as the limit saw it at the server's time view.Now
	cost     int64          // what was refused
	passesAt int64          // the server's time from which on that cost passes
	at       int64          // the time of the refusal, of Now
	trusted  int64          // the time of Now until which the refusal is trusted, at most end
}

// Trust bounds the trust in a refusal while the database can be asked, in microseconds.
const Trust = int64(time.Second / time.Microsecond)

// end returns the time of Now from which on a row refuses nothing.
func (r *refusal) end() int64 { return r.at + r.passesAt - r.view.Now }

// Begin returns the number of a batch that begins, for Remember. A batch may be about to remember a refusal
// when the refusal of the row is cleared. So each batch and each clearing of a row has a number, in the order
// in which they begin. Stripe.cleared has the number of the last clearing, by a hash of the key: a batch
// remembers no refusal of a row that may have been cleared after the batch began.
func Begin(t *Set) int64 { return atomic.AddInt64(&t.sequence, 1) }

// clearedIndex returns the index of a key in Stripe.cleared.
func clearedIndex(t *Set, key string) uint64 { return t.Hash(t.Seed, key) / StripeCount % 8 }

// Refuses reports whether a row has a refusal for a hit, and then sets the decision. outage is whether the
// database makes no decision: then a refusal is trusted until it ends.
func Refuses(t *Set, r *Row, h *ratelimit.Hit, outage bool, d *ratelimit.Decision) bool {
	s := t.Stripes[r.stripe]
	s.Mu.Lock()
	refused := r.refusal
	s.Mu.Unlock()
	if refused == nil {
		return false
	}
	now := Now(t)
	if now >= refused.end() || now >= refused.trusted && !outage ||
		!h.Limit.Equal(refused.view.Limit) { // a reload makes new limits
		return false
	}
	serverNow := refused.view.Now + now - refused.at
	if h.Cost < refused.cost && algorithm.Fits(h.Limit, &refused.view.Row, serverNow, h.Cost) {
		return false
	}
	*d = algorithm.Refused(h.Limit, &refused.view.Row, serverNow, h.Cost)
	d.Source = ratelimit.FromBlocked
	return true
}

// Remember remembers that a row refused a cost with RetryAfter wait, in the batch with that number of Begin.
// A refusal of a limit InFlight is not remembered: requests end at any time. With leases, another process may
// refund units at any moment, so the refusal of a limit with leases is trusted for a horizon.
func Remember(t *Set, id RowID, view *algorithm.View, cost int64, wait time.Duration, sequence int64) {
	if !t.options.Refusals || view.Limit.Algorithm == ratelimit.InFlight || wait <= 0 ||
		wait == ratelimit.Never {
		return
	}
	trusted := Trust
	if horizon := Horizon(t, view.Limit); horizon > 0 {
		trusted = horizon
	}
	now := Now(t)
	micros := int64(wait / time.Microsecond)
	refused := &refusal{view: *view, cost: cost, passesAt: view.Now + micros, at: now, trusted: now + micros}
	if micros > trusted {
		refused.trusted = now + trusted
	}
	change(t, id, true, func(s *Stripe, r *Row) {
		if s.cleared[clearedIndex(t, id.Key)] <= sequence {
			r.refusal = refused
		}
	})
}

// Clear clears the refusal of a row to which quota was refunded.
func Clear(t *Set, id RowID) {
	s := t.Stripes[t.Hash(t.Seed, id.Key)%StripeCount]
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.cleared[clearedIndex(t, id.Key)] = Begin(t)
	if r := s.Rows[id]; r != nil {
		r.refusal = nil
		keep(t, s, r)
	}
}
