package ratelimit

import (
	"errors"
	"strconv"
)

var (
	// ErrClosed is returned by a store that was closed.
	ErrClosed = errors.New("ratelimit: the store is closed")
	// ErrTimeout is returned if the database has not decided within the timeout.
	ErrTimeout = errors.New("ratelimit: no decision within the timeout")
	// ErrOverloaded is returned if a call has waited for four timeouts although the database answers: more is asked
	// than this process or the database can decide. It is no outage: to let such requests pass would open the limits
	// under load.
	ErrOverloaded = errors.New("ratelimit: overloaded: no decision within four timeouts, while the database answers")
	// ErrUnavailable is returned, with its cause, if a connection to the database
	// fails, and then at once while the database does not answer. The store asks
	// the database in the background until it answers.
	ErrUnavailable = errors.New("ratelimit: the database does not answer")
)

// FieldError says which field of a limit, of a call or of a configuration is wrong.
type FieldError struct {
	Field string // such as "limit"
	Value string // what it holds; "" if it is missing
	Want  string // what it should be
}

// Error reads `limit: "0 1m": must be …`.
func (e *FieldError) Error() string {
	if e.Value == "" {
		return e.Field + ": missing: must be " + e.Want
	}
	return e.Field + ": " + strconv.Quote(e.Value) + ": must be " + e.Want
}
