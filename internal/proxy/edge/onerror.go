package edge

import "net/http"

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

// Consequence says, for the log, what happens to a request without a decision.
func (o *Outcome) Consequence() string {
	if o.Status == 0 {
		return "no decision: letting requests pass"
	}
	return "no decision: refusing requests"
}

// NoDecision is the outcome of a request for which no decision was possible because of
// err.
func NoDecision(onError OnError, err error) Outcome {
	o := Outcome{Err: err}
	if onError == Deny {
		o.Status = http.StatusServiceUnavailable
	}
	return o
}
