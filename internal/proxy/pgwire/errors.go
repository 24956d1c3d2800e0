package pgwire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

var (
	// errClosed reports a call on a closed pool.
	errClosed = errors.New("pgwire: the pool is closed")
	// errLate reports that the context of a call ended before the call got a connection.
	errLate = errors.New("pgwire: no time left")
)

// maxErrorText bounds each field of a server's error, in bytes.
const maxErrorText = 1000

// parseErrorResponse reads an ErrorResponse's fields.
func parseErrorResponse(body []byte) *pg.ServerError {
	e := &pg.ServerError{Severity: "ERROR"}
	for _, field := range bytes.SplitN(body, []byte{0}, 64) { // there are about 20 fields
		if len(field) < 2 {
			continue
		}
		value := field[1:]
		if len(value) > maxErrorText {
			value = value[:maxErrorText]
		}
		switch field[0] {
		case 'S', 'V': // V follows S and is not translated
			e.Severity = withoutControls(string(value))
		case 'C':
			e.Code = withoutControls(string(value))
		case 'M':
			e.Message = withoutControls(string(value))
		case 'R':
			e.Routine = string(value)
		}
	}
	e.Err = errors.New(e.Severity + ": " + e.Message + " (SQLSTATE " + e.Code + ")")
	return e
}

// unexpected returns the error for a message that the protocol does not allow at this point.
func unexpected(kind byte) error {
	return fmt.Errorf("the server sent an unexpected message %q (0x%02x)", string(rune(kind)), kind)
}

// withoutControls replaces control characters, which could garble a terminal or a log.
func withoutControls(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
