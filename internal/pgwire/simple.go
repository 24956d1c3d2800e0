package pgwire

import (
	"bytes"
	"context"
)

// simple sends SQL text of any number of commands. It never says that they may
// run again: unlike a pipeline's, this answer does not tell how far they got.
func simple(ctx context.Context, c *conn, sql string) *outcome {
	if err := send(c, 'Q', sql+"\x00"); err != nil {
		return lostConn(ctx, c, err)
	}
	var complaint *serverError
	for {
		kind, body, err := next(c)
		if err != nil {
			return lostConn(ctx, c, err)
		}
		switch kind {
		case 'C':
			if bytes.HasPrefix(body, []byte("DEALLOCATE")) || bytes.HasPrefix(body, []byte("DISCARD ALL")) {
				forget(c)
			}
		case 'E':
			if complaint == nil {
				complaint = parseError(body)
			}
			if complaint.fatal() {
				return &outcome{err: complaint.err(), code: complaint.code}
			}
		case 'Z':
			if len(body) != 1 {
				return lostConn(ctx, c, unexpected(kind))
			}
			if body[0] != 'I' {
				c.worn = true // left in a transaction
			}
			if complaint != nil {
				return &outcome{err: complaint.err(), code: complaint.code, sound: true}
			}
			return nil
		case 'T', 'D', 'I', 'N', 'S', 'A':
		default:
			return lostConn(ctx, c, unexpected(kind))
		}
	}
}
