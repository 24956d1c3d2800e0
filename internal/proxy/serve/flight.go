package serve

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Flight holds the slots of a request's limits that are in_flight or reserve, and its Upload. The adapter
// serves the request with Context, and calls End when the request finishes, even after a refusal or a panic.
type Flight struct {
	// Context is derived from the request's context. It also ends if the process loses a slot of the request.
	Context context.Context

	cancel context.CancelFunc
	holds  []*ratelimit.Hold
	upload *Upload         // nil without one
	before context.Context // the request's context
}

// flightKey finds a Flight in its Context. It is a pointer, because the interpreter does not
// distinguish types with the same fields.
var flightKey = new(string)

// hasHolds reports whether one of the hits is on a limit that is in_flight or reserves.
func hasHolds(hits []ratelimit.Hit) bool {
	for i := range hits {
		if l := hits[i].Limit; l.Reserves || l.Algorithm == ratelimit.InFlight {
			return true
		}
	}
	return false
}

// Attach sets the Hold of each hit on a limit that is in_flight or reserves. Further calls for the same hits
// set the same slots.
func (f *Flight) Attach(hits []ratelimit.Hit) {
	n := 0
	for i := range hits {
		l := hits[i].Limit
		if !l.Reserves && l.Algorithm != ratelimit.InFlight {
			continue
		}
		if n == len(f.holds) {
			s := &ratelimit.Hold{}
			if !l.Reserves {
				s.Lost = f.cancel
			}
			f.holds = append(f.holds, s)
		}
		hits[i].Hold = f.holds[n]
		n++
	}
}

// detach returns the slot of a hit, which End then does not release.
func (f *Flight) detach(hold *ratelimit.Hold) *ratelimit.Hold {
	for i, s := range f.holds {
		if s == hold {
			f.holds = append(f.holds[:i:i], f.holds[i+1:]...)
			return s
		}
	}
	return nil
}

// End cancels Context and releases the slots and the Upload.
func (f *Flight) End() {
	f.cancel()
	for _, s := range f.holds {
		s.Release()
	}
	if f.upload != nil {
		f.upload.end()
	}
}
