package serve

import (
	"context"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Request is the state of a request on its way through a Site. A Request is reused after Release. The
// goroutine that serves the request owns it, except while Call is in a queue.
type Request struct {
	Site *Site
	HTTP *http.Request
	Data any // data of the proxy for its Texts

	Limits    *LimitSet // the limits of the configuration that apply
	Hits      []ratelimit.Hit
	Decisions []ratelimit.Decision
	Err       error   // the reason for missing Decisions
	Flight    *Flight // nil if the request holds no slots

	// Asked reports that the policy was evaluated, which sets the other fields of this group. Verdict is
	// empty if Asked is false.
	Asked     bool
	Key, User string // the request's API key, or without one its user
	Facts     policy.Facts
	Verdict   policy.Verdict

	Began    time.Time
	Arrived  time.Time // the start of the wait for the decision
	Outcome  respond.Outcome
	Settling *Settling // settles the request after the response; nil without a settlement

	// Deliver sets Delivered and Admitted, and for a refusal Body. It sets the headers in Writer. If Writer
	// is nil, the proxy responds.
	Delivered bool
	Admitted  bool
	Body      string
	Writer    http.ResponseWriter

	Call *batch.Call // the request's call in a queue; nil without a queue

	failure error  // the error of the policy's evaluation
	waited  bool   // the store has to decide Hits
	matched []byte // a '1' for each of Site.Zones that matches the request, else a '0'
}

// Release prepares a Request for reuse and drops references to the memory of its request.
func (q *Request) Release() {
	for i := range q.Hits {
		q.Hits[i] = ratelimit.Hit{}
	}
	if q.Call != nil {
		for i := range q.Call.Hits {
			q.Call.Hits[i] = ratelimit.Hit{}
		}
	}
	if q.Asked {
		q.Facts = policy.Facts{}
		q.Verdict.Reset()
		q.Key = ""
		q.User = ""
		q.failure = nil
		q.Asked = false
	}
	q.HTTP = nil
	q.Writer = nil
	q.Data = nil
	q.Limits = nil
	q.Flight = nil
	q.Settling = nil
	q.Err = nil
	q.Hits = q.Hits[:0]
}

// Flight holds the slots of a request's in_flight limits. The adapter serves the request with Context, and
// calls End when the request finishes, even after a refusal or a panic.
type Flight struct {
	// Context is derived from the request's context. It also ends if the process loses a slot of the request.
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

// End cancels Context and releases the slots. It does nothing for a nil Flight.
func (f *Flight) End() {
	if f == nil {
		return
	}
	f.cancel()
	for _, s := range f.slots {
		s.Release()
	}
}
