package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// States of a prepared statement on its connection.
const (
	isAbsent = iota
	isSent   // the Parse of the statement is in the pipeline
	isReady
)

// prepared is the plan of a connection for all statements with one SQL text, and the state of their prepared
// statement on the server.
type prepared struct {
	name   string // "" for a statement that is parsed for one use
	bind   string // the Bind message up to the number of parameters
	state  int
	simple bool // in the simple protocol, so the text may have any number of commands

	described bool    // columns and layout are known
	columns   int     // the number of columns of a row
	layout    *layout // nil unless all columns have eight bytes
}

// The messages at the end of a statement. bindEnd is the end of Bind and selects the binary format for all
// columns of the result. A Describe follows if the columns are not known yet, and then an Execute without a
// limit. The last statement of a transaction has a Sync.
const (
	bindEnd         = "\x00\x01\x00\x01"
	describeMessage = "D\x00\x00\x00\x06P\x00"
	executeMessage  = "E\x00\x00\x00\x09\x00\x00\x00\x00\x00"
	syncMessage     = "S\x00\x00\x00\x04"
)

// appendStatement appends a statement's messages to b and returns its plan. If joined is set, another
// statement of its transaction follows.
func appendStatement(c *conn, b []byte, st *pgdb.Statement, joined, unnamed bool) ([]byte, *prepared) {
	end := executeMessage + syncMessage
	if joined {
		end = executeMessage
	}
	pr := c.statements[st.SQL]
	if unnamed || st.Unnamed || pr == nil || pr.state != isReady {
		pr = prepare(c, st, unnamed || st.Unnamed)
		if pr.state == isAbsent {
			b = appendParse(b, st, pr)
			end = describeMessage + end
			pr.state = isSent
		}
	}
	start := len(b)
	b = append(b, pr.bind...)
	b = appendParameters(b, st.Args)
	b = append(b, bindEnd...)
	putLength(b[start:], 1)
	return append(b, end...), pr
}

// prepare returns a statement's plan in all unusual cases, such as a statement that is not prepared yet or
// must not be.
func prepare(c *conn, st *pgdb.Statement, unnamed bool) *prepared {
	pr := c.statements[st.SQL]
	if pr == nil || unnamed {
		pr = &prepared{}
		if !unnamed {
			pr.name = pg.StatementName(st.SQL)
			c.statements[st.SQL] = pr
		}
		n := len(st.Args)
		pr.bind = "B\x00\x00\x00\x00\x00" + pr.name + "\x00\x00\x00" + string([]byte{byte(n >> 8), byte(n)})
	}
	return pr
}

// OIDs of the types of parameters.
var (
	oidUnknown = []byte{0, 0, 0, 0} // the text of the statement decides
	oidBigint  = []byte{0, 0, 0, 20}
	oidText    = []byte{0, 0, 0, 25}
	oidTexts   = []byte{0, 0, 3, 241}
	oidBigints = []byte{0, 0, 3, 248}
)

// appendParse appends the message that prepares a statement.
func appendParse(b []byte, st *pgdb.Statement, pr *prepared) []byte {
	start := len(b)
	b = append(b, "P\x00\x00\x00\x00"+pr.name+"\x00"+st.SQL+"\x00"...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(st.Args)))
	for _, arg := range st.Args {
		oid := oidUnknown
		switch arg.(type) {
		case []string:
			oid = oidTexts
		case []int64:
			oid = oidBigints
		case string:
			oid = oidText
		case int64:
			oid = oidBigint
		}
		b = append(b, oid...)
	}
	putLength(b, start+1)
	return b
}

// errRows reports a malformed description of a result.
var errRows = errors.New("the server described its rows in an impossible way")

// takeDescription stores the columns of a RowDescription in pr.
func takeDescription(pr *prepared, body []byte) error {
	if len(body) < 2 {
		return errRows
	}
	n := int(binary.BigEndian.Uint16(body))
	body = body[2:]
	eightBytes := n > 0
	for i := 0; i < n; i++ {
		name := bytes.IndexByte(body, 0)
		if name < 0 || len(body) < name+1+18 {
			return errRows
		}
		field := body[name+1:]
		body = field[18:]
		if binary.BigEndian.Uint16(field[16:]) != 1 {
			return errors.New("the server does not send rows in binary format")
		}
		eightBytes = eightBytes && isEightBytes(binary.BigEndian.Uint32(field[6:]))
	}
	if len(body) > 0 {
		return errRows
	}
	pr.described = true
	pr.columns = n
	pr.layout = nil
	if eightBytes {
		pr.layout = newLayout(n)
	}
	return nil
}
