package ratelimit

import (
	"errors"
	"strconv"
)

var (
	// ErrClosed is returned by the methods of a closed store, and wrapped by those of what uses it.
	ErrClosed = errors.New("ratelimit: the store is closed")
	// ErrTimeout is returned if the database does not decide within the timeout.
	ErrTimeout = errors.New("ratelimit: no decision within the timeout")
	// ErrOverloaded is returned if a call has waited for four timeouts while the database answers others:
	// the demand exceeds what this process or the database can decide. Refuse such a request, because
	// letting it pass would open the limits under load.
	ErrOverloaded = errors.New(
		"ratelimit: overloaded: no decision within four timeouts, while the database answers")
	// ErrUnavailable is returned, with its cause, if a connection to the database fails. Further calls then
	// fail immediately, until a check in the background finds that the database answers.
	ErrUnavailable = errors.New("ratelimit: the database does not answer")
)

// FieldError reports an invalid field of a limit, a call or a configuration.
type FieldError struct {
	Field string // such as "limit"
	Value string // the invalid value; "" if the field is missing
	Want  string // the values that are valid, to follow "must be"
}

// Error returns a text such as `limit: "0 1m": must be …`.
func (e *FieldError) Error() string {
	if e.Value == "" {
		return e.Field + ": missing: must be " + e.Want
	}
	return e.Field + ": " + strconv.Quote(e.Value) + ": must be " + e.Want
}
