package serve

import (
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Request is a request on its way through a Site. It is used for one request after another. The goroutine
// that serves the request owns it until Release, except while Call is in a queue.
type Request struct {
	Site *Site
	HTTP *http.Request
	Data any // what the texts of a proxy need besides HTTP

	Limits    *LimitSet // of the configuration, for this request
	Hits      []ratelimit.Hit
	Decisions []ratelimit.Decision
	Err       error   // why the store made no Decisions
	Flight    *Flight // nil if the request holds no slots

	// Asked is set if the policy was asked, with the rest of this group. Otherwise Verdict is empty.
	Asked     bool
	Key, User string // the API key of the request, or without one the user
	Facts     policy.Facts
	Verdict   policy.Verdict

	Began    time.Time
	Arrived  time.Time // the wait for the decision counts from then
	Outcome  respond.Outcome
	Settling *Settling // what is to be settled after the response; nil without

	// Deliver sets Delivered, and Admitted or the Body of a refusal. Without a Writer the proxy responds.
	Delivered bool
	Admitted  bool
	Body      string
	Writer    http.ResponseWriter

	Call *batch.Call // of a proxy with a queue

	failure error  // why the policy could not be asked
	waited  bool   // the store has to decide Hits
	matched []byte // which of Site.Zones are for the request
}

// Release makes a Request ready for another request, and drops what may be a part of a long request.
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
