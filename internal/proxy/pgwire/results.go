package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Usual parts of a response: BindComplete, the start of a CommandComplete of less than 256 bytes, and
// ReadyForQuery outside a transaction.
var (
	bindComplete = []byte("2\x00\x00\x00\x04")
	shortMessage = []byte("C\x00\x00\x00")
	readyIdle    = []byte("Z\x00\x00\x00\x05I")
)

// responseError describes the failure of a statement.
type responseError struct {
	failure *pg.ServerError
	started bool // the server had started the statement
}

// connectionFailed returns the responseError of a connection that failed with err.
func connectionFailed(started bool, err error) *responseError {
	return &responseError{failure: &pg.ServerError{Err: err}, started: started}
}

// readResponse reads the response to one statement. If joined is set, another statement of the transaction
// follows, and the response ends with CommandComplete. Otherwise it ends with ReadyForQuery. readResponse
// returns nil if the statement succeeded, and then sets its Err to nil.
func readResponse(c *conn, st *pgdb.Statement, pr *prepared, joined bool) *responseError {
	if c.r == c.w {
		if err := fill(c); err != nil {
			return connectionFailed(false, err)
		}
	}
	unread := c.buf[c.r:c.w]
	if pr.state != isReady || !bytes.HasPrefix(unread, bindComplete) {
		return readMessages(c, st, pr, joined, false)
	}
	unread = unread[5:]
	if pr.layout != nil {
		unread = readRows(c, st, pr.layout, unread)
	}
	c.r = c.w - len(unread)
	if len(unread) > 11 && bytes.HasPrefix(unread, shortMessage) {
		n := int(unread[4]) + 1
		if joined && n <= len(unread) {
			c.r += n
			st.Err = nil
			return nil
		}
		if n < len(unread) && bytes.HasPrefix(unread[n:], readyIdle) {
			c.r += n + len(readyIdle)
			st.Err = nil
			return nil
		}
	}
	return readMessages(c, st, pr, joined, true)
}

// If all columns of a result have eight bytes, its rows without NULLs are messages of equal length with equal
// heads. readRows reads many such rows in one step, because an interpreter takes long for each step.
// readMessages reads all other rows one by one.

// columnSize is the size of an eight-byte column in a row: a length and a value.
const columnSize = 4 + 8

// layout describes the messages of rows that have only eight-byte columns.
type layout struct {
	head    []byte // type, length, number of columns
	size    int    // size of the whole message
	columns int    // size of the columns
}

func newLayout(columns int) *layout {
	l := &layout{columns: columns * columnSize}
	l.size = 7 + l.columns
	l.head = binary.BigEndian.AppendUint32([]byte{'D'}, uint32(l.size-1))
	l.head = binary.BigEndian.AppendUint16(l.head, uint16(columns))
	return l
}

// isEightBytes reports whether values of a type have eight bytes in binary format.
func isEightBytes(oid uint32) bool {
	switch oid {
	case 20, 701, 1114, 1184: // bigint, double precision, timestamp, timestamptz
		return true
	}
	return false
}

// readRows reads rows with the layout l from unread, which is the unread part of the buffer, and then from
// the connection, until another message follows. readRows returns the part of the buffer that is still
// unread.
func readRows(c *conn, st *pgdb.Statement, l *layout, unread []byte) []byte {
	size := l.size
	length := l.head[4]
	for {
		n := 0
		for n+size <= len(unread) && unread[n] == 'D' && unread[n+4] == length {
			n += size
		}
		if n > 0 {
			// ReplaceAll also removes the bytes of a head from a value. The length then differs.
			columns := bytes.ReplaceAll(unread[:n], l.head, nil)
			if len(columns) != n/size*l.columns {
				return unread
			}
			st.Result = append(st.Result, columns...)
			st.Rows += n / size
			unread = unread[n:]
			continue
		}
		if len(unread) >= size || !mayStartWith(unread, l.head) {
			return unread
		}
		c.r = c.w - len(unread) // the buffer ends inside a row
		if fill(c) != nil {
			return c.buf[c.r:c.w] // readMessages meets the same error
		}
		unread = c.buf[c.r:c.w]
	}
}

// mayStartWith reports whether a message that starts with unread may start with head. The message of a row
// with a NULL does not start with head. Such a message is shorter than the messages of other rows and may be
// the last message, so readRows must not wait for more bytes.
func mayStartWith(unread, head []byte) bool {
	if len(unread) < len(head) {
		return bytes.HasPrefix(head, unread)
	}
	return bytes.HasPrefix(unread, head)
}

var errRow = errors.New("the server sent a row with another number of columns than it described")

// readMessages reads the unread part of a response, message by message. started reports whether BindComplete
// has been read. For joined, see readResponse.
func readMessages(c *conn, st *pgdb.Statement, pr *prepared, joined, started bool) *responseError {
	var e *pg.ServerError
	complete := false
	for {
		kind, body, err := readMessage(c)
		if err != nil {
			return connectionFailed(started, err)
		}
		switch kind {
		case 'D':
			switch {
			case !started || e != nil || complete && !pr.simple:
				err = unexpected(kind)
			case len(body) < 2 || pr.described && int(binary.BigEndian.Uint16(body)) != pr.columns:
				err = errRow
			default:
				st.Result = append(st.Result, body[2:]...)
				st.Rows++
			}
		case '1':
			pr.state = isReady
		case '2':
			started = true
		case 'T':
			if !pr.simple {
				err = takeDescription(pr, body)
			}
		case 'n':
			pr.described = true
			pr.columns = 0
			pr.layout = nil
		case 'C', 'I':
			complete = true
			if joined && e == nil {
				st.Err = nil
				return nil
			}
		case 'E':
			e = parseErrorResponse(body)
			if e.EndsConnection() {
				return &responseError{failure: e, started: started}
			}
		case 'Z':
			if len(body) != 1 || e == nil && !complete {
				return connectionFailed(started, unexpected(kind))
			}
			if body[0] != 'I' {
				c.discard = true // a transaction is still open
			}
			if e != nil {
				return &responseError{failure: e, started: started}
			}
			st.Err = nil
			return nil
		default:
			err = unexpected(kind)
		}
		if err != nil {
			return connectionFailed(started, err)
		}
	}
}
