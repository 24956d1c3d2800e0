package serve

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Flight has the Holds of a request on limits that are in_flight or reserve, and its Upload. The adapter
// serves the request with Context, and calls End when the request finishes, even after a refusal or a panic.
type Flight struct {
	// Context is derived from the request's context. It also ends if the process loses a slot of the request.
	Context context.Context

	cancel context.CancelFunc
	holds  []*ratelimit.Hold
	upload *Upload         // nil without one
	parent context.Context // the request's context
	// hasSettling reports that a Settling ends the Holds on limits that reserve, which have no Lost.
	hasSettling bool
}

// flightKey finds a Flight in its Context. It is a pointer, because the interpreter does not
// distinguish types with the same fields.
var flightKey = new(string)

// startFlight sets the Upload and the Flight of a request, if its limits need them. It returns false if it
// refuses the request.
func startFlight(q *Request) bool {
	tokens, money, shadowMoney := unitsOf(q.Verdict.Terms)
	enforced := q.Limits.EnforcesTokens || tokens
	hasLength := q.HTTP.ContentLength >= 0
	parent := q.HTTP.Context()
	if q.HTTP.Method == http.MethodPost && (enforced || shadowMoney && hasLength) {
		u := &Upload{site: q.Site, length: -1, bound: q.Site.MaxBody, optional: !enforced,
			body: &heldBody{}, money: money, client: parent, unsized: !hasLength, oneAttempt: q.Writer != nil}
		if parent.Value(flightKey) != nil { // without a call, because an interpreter would take long
			u.client = clientIn(q)
		}
		q.Upload = u
	} else if money {
		q.Outcome = refusal(http.StatusBadRequest, policy.NoPrice)
		return false
	}
	if q.Upload != nil || q.Limits.HasHolds || hasHolds(q.Verdict.Hits) {
		q.Flight = &Flight{upload: q.Upload, parent: parent}
		parent = context.WithValue(parent, flightKey, q.Flight)
		q.Flight.Context, q.Flight.cancel = context.WithCancel(parent)
	}
	return true
}

// hasHolds reports whether one of the hits is on a limit that is in_flight or reserves.
func hasHolds(hits []ratelimit.Hit) bool {
	for i := range hits {
		if l := hits[i].Limit; l.Reserves || l.Algorithm == ratelimit.InFlight {
			return true
		}
	}
	return false
}

// setHolds sets the Hold of each hit of some requests on a limit that is in_flight or reserves. If a
// request has two such hits, a further call sets the first Hold in the first one and the second in the other.
func setHolds(requests []*Request, hits [][]ratelimit.Hit, some []int) {
	for _, k := range some {
		f := requests[k].Flight
		n := 0
		for i := range hits[k] {
			one := &hits[k][i]
			l := one.Limit
			if !l.Reserves && l.Algorithm != ratelimit.InFlight {
				continue
			}
			if n == len(f.holds) {
				h := &ratelimit.Hold{}
				if !l.Reserves {
					h.Lost = f.cancel
				}
				f.holds = append(f.holds, h)
			}
			one.Hold = f.holds[n]
			n++
		}
	}
}

// End cancels Context and releases the Upload, and the Holds that no Settling ends.
func (f *Flight) End() {
	f.cancel()
	for _, h := range f.holds {
		if h.Lost != nil || !f.hasSettling {
			h.Release()
		}
	}
	u := f.upload
	if u == nil {
		return
	}
	b := u.body
	b.mu.Lock()
	u.attemptOver = u.oneAttempt
	over := len(b.chunks)+len(b.postponed) == 0 && !u.unsized && atomic.LoadInt32(&b.startedReading) != 0
	b.mu.Unlock()
	if !over {
		u.endAttempt()
	}
}
