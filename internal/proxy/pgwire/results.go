package pgwire

import "github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"

// answerError says why a statement did not succeed.
type answerError struct {
	server  *serverError // what the server reported, or nil
	started bool         // the server had begun to run the statement
	err     error        // what happened to the connection, if server is nil
}

// readAnswer reads the answer to one statement: if joined, up to its CommandComplete, otherwise up to
// ReadyForQuery. It returns nil if the statement succeeded. Statements before it in its transaction have Err
// nil already.
func readAnswer(c *conn, st *pgdb.Statement, pr *prepared, joined bool) *answerError {
	var e *serverError
	started, complete := false, false // BindComplete and CommandComplete have come
	for {
		kind, body, err := next(c)
		if err != nil {
			return &answerError{started: started, err: err}
		}
		switch kind {
		case 'D':
			if !started || complete || e != nil || len(body) < 2 {
				return &answerError{started: started, err: unexpected(kind)}
			}
			st.Result = append(st.Result, body[2:]...)
			st.Rows++
		case '1':
			pr.state = isReady
		case '2':
			started = true
		case 'C', 'I':
			complete = true
			if joined && e == nil {
				st.Err = nil
				return nil
			}
		case 'E':
			e = parseError(body)
			if e.fatal() {
				return &answerError{started: started, server: e}
			}
		case 'Z':
			if len(body) != 1 || e == nil && !complete {
				return &answerError{started: started, err: unexpected(kind)}
			}
			if body[0] != 'I' {
				c.discard = true // a transaction is still open
			}
			if e != nil {
				return &answerError{started: started, server: e}
			}
			st.Err = nil
			return nil
		case 'N', 'S', 'A':
		default:
			return &answerError{started: started, err: unexpected(kind)}
		}
	}
}
