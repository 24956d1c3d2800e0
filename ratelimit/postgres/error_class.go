package postgres

import (
	"context"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
)

// Classes of errors that have no SQLSTATE, or one of an unusual class.
const (
	timeoutClass    = "timeout"
	connectionClass = "connection"
	otherClass      = "other"
)

// errorClasses are the keys of Stats.Errors. They are a fixed set, so that a server cannot add
// labels to metrics.
var errorClasses = []string{
	"08", "0A", "22", "23", "25", "26", "28", "3D", "40", "42", "53", "54", "55", "57", "58", "XX",
	timeoutClass, connectionClass, otherClass,
}

// ErrorClasses returns the keys of Stats.Errors: the first two characters of SQLSTATEs, "timeout"
// for an answer that did not come in time, "connection" for a connection that failed without an
// SQLSTATE, and "other" for all other SQLSTATEs.
func ErrorClasses() []string { return append([]string(nil), errorClasses...) }

// classOf is the class of an SQLSTATE.
func classOf(code string) string {
	if len(code) >= 2 {
		for _, class := range errorClasses {
			if class == code[:2] {
				return class
			}
		}
	}
	return otherClass
}

// countErrors counts the errors of a call of DB.Run with these statements. failure is what Run
// returned: it counts as one error, however many statements it leaves without an answer.
func (c *counts) countErrors(statements []*Statement, failure error) {
	if failure != nil {
		c.addError(classOfFailure(statements, failure))
		return
	}
	for _, s := range statements {
		// A transaction of several limits that do not fit fails on purpose.
		if s.Err != nil && s.Code != sqlstate.DivisionByZero && !errors.Is(s.Err, ErrRolledBack) {
			c.addError(classOf(s.Code))
		}
	}
}

// classOfFailure is the class of an error of DB.Run.
func classOfFailure(statements []*Statement, failure error) string {
	if errors.Is(failure, context.DeadlineExceeded) {
		return timeoutClass
	}
	for _, s := range statements {
		if s.Err != nil && s.Code != "" && s.Code != sqlstate.DivisionByZero {
			return classOf(s.Code)
		}
	}
	return connectionClass
}
