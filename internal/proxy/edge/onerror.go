package edge

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// OnError is what happens to a request for which no decision was possible, because the
// database did not answer in time.
type OnError string

// The values of OnError.
const (
	Allow OnError = "allow" // the request passes: limits are not enforced meanwhile
	Deny  OnError = "deny"  // the request is refused with status 503
	Local OnError = "local" // this process decides, at its share of each limit
)

// readOnError reads an OnError.
func readOnError(to *Settings, text string) error {
	to.OnError = OnError(text)
	if to.OnError != Allow && to.OnError != Deny && to.OnError != Local {
		return errWant
	}
	return nil
}

// overloadedWait is for Retry-After of a request that is refused because of ratelimit.ErrOverloaded.
const overloadedWait = time.Second

// NoDecision is the outcome of a request for which no decision was possible because of
// err. With ratelimit.ErrOverloaded the request is refused, whatever OnError says: the database answers.
func NoDecision(onError OnError, err error) respond.Outcome {
	o := respond.Outcome{Err: err}
	if errors.Is(err, ratelimit.ErrOverloaded) {
		o.Wait = overloadedWait
		o.Status = http.StatusServiceUnavailable
	} else if onError == Deny {
		o.Status = http.StatusServiceUnavailable
	}
	return o
}

// canRefuse reports whether a decision on one of the hits could have refused the request.
func canRefuse(q *Request) bool {
	marks := q.Verdict.Marks
	first := len(q.Hits) - len(marks)
	for i := range q.Hits {
		h := &q.Hits[i]
		if !h.Apart && !h.Peek && h.Cost >= 0 && (i < first || !marks[i-first].Overage) {
			return true
		}
	}
	return false
}
