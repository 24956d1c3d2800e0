package pgwire

import (
	"encoding/binary"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// readRest reads what is left of one statement's answer, whatever it is. started
// says that BindComplete was seen, rowErr what Row said so far.
func readRest(c *conn, st *ratelimit.Statement, pr *prepared, started bool, rowErr error) *answer {
	row := st.Row
	var complaint *serverError
	complete := false
	for {
		kind, body, err := next(c)
		if err != nil {
			return &answer{started: started, err: err}
		}
		switch kind {
		case 'D':
			if !started || complete || complaint != nil {
				return &answer{started: started, err: unexpected(kind)}
			}
			if c.columns, err = parseRow(body, c.columns[:0]); err != nil {
				return &answer{started: started, err: err}
			}
			if pr.described && len(c.columns) != pr.columns {
				return &answer{started: started, err: errors.New("the server sent a row of another number of columns than it described")}
			}
			if row != nil && rowErr == nil {
				rowErr = row(c.columns)
			}
		case '1':
			pr.state = isReady
		case '2':
			started = true
		case 'T':
			if err := describe(pr, body); err != nil {
				return &answer{started: started, err: err}
			}
		case 'n':
			pr.described = true
			pr.columns = 0
			pr.layout = nil
		case 'C', 'I':
			complete = true
		case 'E':
			complaint = parseError(body)
			if complaint.fatal() {
				return &answer{started: started, complaint: complaint}
			}
		case 'Z':
			if len(body) != 1 || complaint == nil && !complete {
				return &answer{started: started, err: unexpected(kind)}
			}
			if body[0] != 'I' {
				c.worn = true // left in a transaction
			}
			if pr.state == isSent {
				pr.state = isAbsent // its Parse failed
			}
			if complaint != nil {
				return &answer{started: started, complaint: complaint}
			}
			st.Err = rowErr
			return nil
		case 'N', 'S', 'A', '3':
		default:
			return &answer{started: started, err: unexpected(kind)}
		}
	}
}

var errRow = errors.New("the server sent a row whose lengths are wrong")

// parseRow cuts a DataRow into its columns, appended to into. NULL is nil.
func parseRow(body []byte, into [][]byte) ([][]byte, error) {
	if len(body) < 2 {
		return nil, errRow
	}
	var null []byte // a bare nil in an append confuses Yaegi
	n := int(binary.BigEndian.Uint16(body))
	body = body[2:]
	for i := 0; i < n; i++ {
		if len(body) < 4 {
			return nil, errRow
		}
		size := binary.BigEndian.Uint32(body)
		body = body[4:]
		if size == 0xFFFFFFFF {
			into = append(into, null)
			continue
		}
		if size > uint32(len(body)) {
			return nil, errRow
		}
		into = append(into, body[:size:size])
		body = body[size:]
	}
	if len(body) > 0 {
		return nil, errRow
	}
	return into, nil
}
