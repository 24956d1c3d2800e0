package serve

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Flight holds the slots of a request with hits on limits in_flight. The adapter serves the request with
// Context, and calls End when the request has ended, after a refusal and a panic too.
type Flight struct {
	// Context is that of the request. It ends, too, if the process has lost a slot of the request.
	Context context.Context

	cancel context.CancelFunc
	slots  []*ratelimit.Slot
}

// hasSlots reports whether one of the hits is on a limit in_flight.
func hasSlots(hits []ratelimit.Hit) bool {
	for i := range hits {
		if hits[i].Limit.Algorithm == ratelimit.InFlight {
			return true
		}
	}
	return false
}

// NewFlight returns the flight of a request with a context.
func NewFlight(ctx context.Context) *Flight {
	f := &Flight{}
	f.Context, f.cancel = context.WithCancel(ctx)
	return f
}

// Attach sets the slots of the hits on limits in_flight. It can be called again for the same hits.
func (f *Flight) Attach(hits []ratelimit.Hit) {
	n := 0
	for i := range hits {
		if hits[i].Limit.Algorithm != ratelimit.InFlight {
			continue
		}
		if n == len(f.slots) {
			f.slots = append(f.slots, &ratelimit.Slot{Lost: f.cancel})
		}
		hits[i].Slot = f.slots[n]
		n++
	}
}

// End releases the slots. A nil Flight has none.
func (f *Flight) End() {
	if f == nil {
		return
	}
	f.cancel()
	for _, s := range f.slots {
		s.Release()
	}
}
