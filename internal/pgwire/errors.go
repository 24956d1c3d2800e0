package pgwire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// errClosed is what a closed pool answers.
var errClosed = errors.New("pgwire: the pool is closed")

// SQLSTATEs that this package acts on.
const (
	readOnlyTransaction   = "25006"
	noSuchStatement       = "26000" // a prepared statement of that name is not there
	invalidAuthorization  = "28000"
	statementExists       = "42P05" // a prepared statement of that name is there already
	featureNotSupported   = "0A000"
	protocolViolation     = "08P01" // also what PgBouncer says of all its own troubles
	adminShutdown         = "57P01"
	crashShutdown         = "57P02"
	cannotConnectNow      = "57P03"
	databaseDropped       = "57P04"
	idleSessionTimeout    = "57P05"
	untranslatable        = "22021" // text that is not in the encoding, such as NUL
	maxErrorText          = 1000    // bytes of a server's message that are kept
	routineOfStaleResults = "RevalidateCachedQuery"
)

// serverError is an ErrorResponse. It is passed on as such, never as an error
// within this package: interpreted code cannot take an error apart.
type serverError struct {
	severity string
	code     string
	message  string
	routine  string
}

// parseError reads an ErrorResponse's fields.
func parseError(body []byte) *serverError {
	e := &serverError{severity: "ERROR"}
	for _, field := range bytes.SplitN(body, []byte{0}, 64) { // there are about 20 fields
		if len(field) < 2 {
			continue
		}
		value := field[1:]
		if len(value) > maxErrorText {
			value = value[:maxErrorText]
		}
		switch field[0] {
		case 'S':
			if e.severity == "ERROR" {
				e.severity = string(value)
			}
		case 'V': // the same, never translated; comes after it
			e.severity = string(value)
		case 'C':
			e.code = printable(string(value))
		case 'M':
			e.message = printable(string(value))
		case 'R':
			e.routine = string(value)
		}
	}
	return e
}

// fatal reports whether the server ended the session with this.
func (e *serverError) fatal() bool { return e.severity == "FATAL" || e.severity == "PANIC" }

// err is the error for callers.
func (e *serverError) err() error {
	return errors.New(e.String())
}

func (e *serverError) String() string {
	return printable(e.severity) + ": " + e.message + " (SQLSTATE " + e.code + ")"
}

// idleEnd reports whether this is how a server ends a session from its side,
// rather than because of a statement.
func (e *serverError) idleEnd() bool {
	switch e.code {
	case adminShutdown, crashShutdown, cannotConnectNow, databaseDropped, idleSessionTimeout:
		return e.fatal()
	}
	return false
}

// poolerLostStatement reports whether this is a pooler that does not have a
// prepared statement any more.
func (e *serverError) poolerLostStatement() bool {
	return e.code == protocolViolation && e.fatal() && strings.Contains(e.message, "prepared statement")
}

// unexpected is a protocol error.
func unexpected(kind byte) error {
	return fmt.Errorf("the server sent an unexpected message %q (0x%02x)", string(rune(kind)), kind)
}

// printable replaces what could confuse a terminal or a log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

// failure puts an error of a connection into words, and wraps ctx's error where
// ctx is what ended it.
func failure(ctx context.Context, doing string, err error) error {
	ended := ctx.Err()
	switch {
	case ended == nil && errors.Is(err, os.ErrDeadlineExceeded):
		ended = context.DeadlineExceeded // the clock of the socket was first
	case ended == nil:
		return fmt.Errorf("pgwire: %s: %w", doing, err)
	}
	return fmt.Errorf("pgwire: %s: %w", doing, ended)
}
