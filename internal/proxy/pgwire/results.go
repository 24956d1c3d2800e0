package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Usual parts of an answer: BindComplete, the start of a CommandComplete of less
// than 256 bytes, ReadyForQuery outside a transaction.
var (
	bindComplete = []byte("2\x00\x00\x00\x04")
	shortMessage = []byte("C\x00\x00\x00")
	readyIdle    = []byte("Z\x00\x00\x00\x05I")
)

// answerError describes the failure of a statement.
type answerError struct {
	server  *serverError // what the server reported, or nil
	started bool         // the server had begun to run the statement
	err     error        // what happened to the connection, if server is nil
}

// readAnswer reads the answer to one statement: if joined, up to its
// CommandComplete, otherwise up to ReadyForQuery. It returns nil if the statement
// succeeded. Statements before it in its transaction have Err nil already.
func readAnswer(c *conn, st *pgdb.Statement, pr *prepared, joined bool) *answerError {
	if c.r == c.w {
		if err := fill(c); err != nil {
			return &answerError{err: err}
		}
	}
	seen := c.buf[c.r:c.w]
	if pr.state != isReady || !bytes.HasPrefix(seen, bindComplete) {
		return readMessages(c, st, pr, joined, false)
	}
	seen = seen[5:]
	if pr.layout != nil {
		seen = readRows(c, st, pr.layout, seen)
	}
	c.r = c.w - len(seen)
	if len(seen) > 11 && bytes.HasPrefix(seen, shortMessage) {
		n := int(seen[4]) + 1
		if joined && n <= len(seen) {
			c.r += n
			st.Err = nil
			return nil
		}
		if n < len(seen) && bytes.HasPrefix(seen[n:], readyIdle) {
			c.r += n + len(readyIdle)
			st.Err = nil
			return nil
		}
	}
	return readMessages(c, st, pr, joined, true)
}

// If all columns of a result have eight bytes, its rows without NULLs have messages of equal
// length and equal heads. readRows takes many of them at a time, since an interpreter pays for
// each step. readMessages takes all other rows one by one.

// columnSize is the size of an eight-byte column in a row: its length and its value.
const columnSize = 4 + 8

// layout describes the messages of rows that have only eight-byte columns.
type layout struct {
	head    []byte // type, length, number of columns
	size    int    // of the whole message
	columns int    // size of the columns
}

func newLayout(columns int) *layout {
	l := &layout{columns: columns * columnSize}
	l.size = 7 + l.columns
	l.head = binary.BigEndian.AppendUint32([]byte{'D'}, uint32(l.size-1))
	l.head = binary.BigEndian.AppendUint16(l.head, uint16(columns))
	return l
}

// isEightBytes reports whether a type has eight bytes in binary format.
func isEightBytes(oid uint32) bool {
	switch oid {
	case 20, 701, 1114, 1184: // bigint, double precision, timestamp, timestamptz
		return true
	}
	return false
}

// readRows takes the rows of that layout at the start of seen, the unread part of
// the buffer, and reads more until another message follows. It returns what is
// then unread.
func readRows(c *conn, st *pgdb.Statement, l *layout, seen []byte) []byte {
	size := l.size
	length := l.head[4]
	for {
		n := 0
		for n+size <= len(seen) && seen[n] == 'D' && seen[n+4] == length {
			n += size
		}
		if n > 0 {
			// A value that contains the bytes of a head loses them too, and then the length differs.
			columns := bytes.ReplaceAll(seen[:n], l.head, nil)
			if len(columns) != n/size*l.columns {
				return seen
			}
			st.Result = append(st.Result, columns...)
			st.Rows += n / size
			seen = seen[n:]
			continue
		}
		if len(seen) >= size || !mayStartWith(seen, l.head) {
			return seen
		}
		c.r = c.w - len(seen) // the buffer ends within a row
		if fill(c) != nil {
			return c.buf[c.r:c.w] // readMessages meets the same error
		}
		seen = c.buf[c.r:c.w]
	}
}

// mayStartWith reports whether a message that begins with seen may begin with head. The message of a
// row with a NULL does not. It is shorter than other rows, and may be the last message, so readRows
// must not wait for more of it.
func mayStartWith(seen, head []byte) bool {
	if len(seen) < len(head) {
		return bytes.HasPrefix(head, seen)
	}
	return bytes.HasPrefix(seen, head)
}

var errRow = errors.New("the server sent a row with another number of columns than it described")

// readMessages reads the rest of an answer, message by message. started says
// whether BindComplete has been read.
func readMessages(c *conn, st *pgdb.Statement, pr *prepared, joined, started bool) *answerError {
	var e *serverError
	complete := false
	for {
		kind, body, err := next(c)
		if err != nil {
			return &answerError{started: started, err: err}
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
		default:
			err = unexpected(kind)
		}
		if err != nil {
			return &answerError{started: started, err: err}
		}
	}
}
