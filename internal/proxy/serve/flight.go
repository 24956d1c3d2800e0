package serve

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Flight holds the slots of a request's in_flight limits, and its Upload. The adapter serves the request with
// Context, and calls End when the request finishes, even after a refusal or a panic.
type Flight struct {
	// Context is derived from the request's context. It also ends if the process loses a slot of the request.
	Context context.Context

	cancel context.CancelFunc
	slots  []*ratelimit.Slot
	upload *Upload // nil without one
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

// Attach sets the Slot of each hit on a limit in_flight. Further calls for the same hits set the same slots.
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

// End cancels Context and releases the slots and the Upload.
func (f *Flight) End() {
	f.cancel()
	for _, s := range f.slots {
		s.Release()
	}
	if f.upload != nil {
		f.upload.release()
	}
}
