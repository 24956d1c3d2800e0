package pgwire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// maxPrepared bounds the named statements of a connection. More texts than a
// store has are sent without a name.
const maxPrepared = 256

// States of a prepared statement on its connection.
const (
	isAbsent = iota
	isSent   // earlier in the pipeline under way
	isReady
)

// prepared is what a connection knows of a statement's text.
type prepared struct {
	name   string // "" is none: it lasts for one use
	params int
	bind   string // the Bind message up to the number of parameters
	state  int
	stale  bool // one of that name may be there and must be closed first

	described bool
	columns   int     // of a row
	layout    *layout // nil if not all are of eight bytes
}

// The messages at the end of a statement: of Bind, that all columns are to be in
// binary format; Execute without a limit, and Sync. Between them, where the
// columns of the result are not known yet, comes Describe.
const (
	bindEnd     = "\x00\x01\x00\x01"
	runAndSync  = "E\x00\x00\x00\x09\x00\x00\x00\x00\x00S\x00\x00\x00\x04"
	describeAll = "D\x00\x00\x00\x06P\x00"
	allOfIt     = bindEnd + runAndSync
)

// appendStatement appends a statement's messages to b. Where the statement
// cannot be sent, it sets Err and returns b and no plan.
func appendStatement(c *conn, b []byte, st *ratelimit.Statement, unnamed bool) ([]byte, *prepared) {
	pr := c.statements[st.SQL]
	if unnamed || c.unnamed || pr == nil || pr.state != isReady || pr.params != len(st.Args) {
		return appendUnusual(c, b, st, unnamed || c.unnamed)
	}
	st.Err = errPending
	st.Code = ""
	start := len(b)
	b = append(b, pr.bind...)
	b, err := appendParameters(b, st.Args)
	if err != nil {
		refuse(st, err)
		return b[:start], nil
	}
	binary.BigEndian.PutUint32(b[start+1:], uint32(len(b)+len(bindEnd)-start-1))
	return append(b, allOfIt...), pr
}

// appendUnusual does the same for a statement that is not prepared yet, and in
// every other case.
func appendUnusual(c *conn, b []byte, st *ratelimit.Statement, unnamed bool) ([]byte, *prepared) {
	st.Err = errPending
	st.Code = ""
	if strings.Contains(st.SQL, "\x00") {
		st.Err = errors.New("pgwire: the SQL text holds a NUL byte")
		return b, nil
	}
	if len(st.Args) > 65535 {
		st.Err = fmt.Errorf("pgwire: %d parameters, must be 65535 or less", len(st.Args))
		return b, nil
	}
	pr := c.statements[st.SQL]
	if pr == nil || unnamed {
		pr = &prepared{}
		if !unnamed && len(c.statements) < maxPrepared {
			sum := sha256.Sum256([]byte(st.SQL))
			pr.name = "pgrl_" + hex.EncodeToString(sum[:12])
			c.statements[st.SQL] = pr
		}
	}
	pr.params = len(st.Args)
	pr.bind = "B\x00\x00\x00\x00\x00" + pr.name + "\x00\x00\x00" + string([]byte{byte(pr.params >> 8), byte(pr.params)})
	start := len(b)
	parse := pr.state == isAbsent
	if parse {
		b = appendParse(b, st, pr)
	}
	bind := len(b)
	b = append(b, pr.bind...)
	b, err := appendParameters(b, st.Args)
	if err != nil {
		refuse(st, err)
		return b[:start], nil
	}
	b = append(b, bindEnd...)
	binary.BigEndian.PutUint32(b[bind+1:], uint32(len(b)-bind-1))
	if parse {
		pr.state = isSent
		b = append(b, describeAll...)
	}
	return append(b, runAndSync...), pr
}

// refuse sets the error of a statement that has a parameter which cannot be sent.
func refuse(st *ratelimit.Statement, err error) {
	st.Err = err
	if errors.Is(err, errNUL) {
		st.Code = untranslatable
	}
}

// Types of parameters, as Postgres numbers them.
var (
	oidUnknown   = []byte{0, 0, 0, 0} // the text's casts decide
	oidBigint    = []byte{0, 0, 0, 20}
	oidText      = []byte{0, 0, 0, 25}
	oidTexts     = []byte{0, 0, 3, 241}
	oidBigints   = []byte{0, 0, 3, 248}
	errNUL       = errors.New("holds a NUL byte, which Postgres's text cannot")
	errParameter = errors.New("must be a []string, []int64, string, int64 or nil")
)

// appendParse appends the message that prepares a statement.
func appendParse(b []byte, st *ratelimit.Statement, pr *prepared) []byte {
	if pr.stale {
		at := len(b)
		b = append(b, "C\x00\x00\x00\x00S"+pr.name+"\x00"...)
		putLength(b, at+1)
	}
	at := len(b)
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
	putLength(b, at+1)
	return b
}

// describe takes in a RowDescription.
func describe(pr *prepared, body []byte) error {
	errRows := errors.New("the server described its rows in a way that cannot be")
	if len(body) < 2 {
		return errRows
	}
	n := int(binary.BigEndian.Uint16(body))
	body = body[2:]
	cells := n > 0
	for i := 0; i < n; i++ {
		name := bytes.IndexByte(body, 0)
		if name < 0 || len(body) < name+1+18 {
			return errRows
		}
		field := body[name+1:]
		body = body[name+1+18:]
		if binary.BigEndian.Uint16(field[16:]) != 1 {
			return errors.New("the server does not send rows in binary format")
		}
		if !isEightBytes(binary.BigEndian.Uint32(field[6:])) {
			cells = false
		}
	}
	if len(body) > 0 {
		return errRows
	}
	pr.described = true
	pr.columns = n
	pr.layout = nil
	if cells {
		pr.layout = newLayout(n)
	}
	return nil
}

// forget makes all statements of a connection be prepared anew.
func forget(c *conn) {
	for _, pr := range c.statements {
		pr.state = isAbsent
		pr.stale = true
	}
}
