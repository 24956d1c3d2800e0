package edge

import (
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantOnError = "allow or deny"

// OnError is what happens to a request for which no decision was possible, because the
// database did not answer in time.
type OnError string

// The values of OnError.
const (
	Allow OnError = "allow" // the request passes: limits are not enforced meanwhile
	Deny  OnError = "deny"  // the request is refused with status 503
)

// ParseOnError reads an OnError; "" is Allow.
func ParseOnError(text string) (OnError, error) {
	switch text {
	case "", string(Allow):
		return Allow, nil
	case string(Deny):
		return Deny, nil
	}
	return "", &ratelimit.FieldError{Field: "on_error", Value: text, Want: wantOnError}
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
