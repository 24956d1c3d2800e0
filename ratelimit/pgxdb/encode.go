package pgxdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// maxParameters is how many parameters the protocol allows.
const maxParameters = 65535

// encoder turns the parameters of statements into Postgres's binary format. Its
// memory is used again.
type encoder struct {
	buffer []byte
	values [][]byte
	oids   []uint32
}

// encode returns the values and the types of a statement's parameters. They stay
// valid until reset, also if the encoder's memory moves meanwhile. The type of NULL
// is 0: the text of the statement decides.
func (e *encoder) encode(s *pgdb.Statement) (values [][]byte, oids []uint32, err error) {
	if len(s.Args) > maxParameters {
		return nil, nil, fmt.Errorf("pgxdb: %d parameters, must be %d or less", len(s.Args), maxParameters)
	}
	if strings.Contains(s.SQL, "\x00") {
		return nil, nil, errors.New("pgxdb: the SQL text holds a NUL byte")
	}
	first := len(e.values)
	for _, arg := range s.Args {
		start := len(e.buffer)
		oid := uint32(0)
		switch v := arg.(type) {
		case nil:
			e.values, e.oids = append(e.values, nil), append(e.oids, 0)
			continue
		case int64:
			oid = pgtype.Int8OID
			e.buffer = binary.BigEndian.AppendUint64(e.buffer, uint64(v))
		case string:
			oid = pgtype.TextOID
			e.buffer = append(e.buffer, v...)
		case []int64:
			oid = pgtype.Int8ArrayOID
			e.array(pgtype.Int8OID, len(v))
			for _, n := range v {
				e.buffer = binary.BigEndian.AppendUint32(e.buffer, 8)
				e.buffer = binary.BigEndian.AppendUint64(e.buffer, uint64(n))
			}
		case []string:
			oid = pgtype.TextArrayOID
			e.array(pgtype.TextOID, len(v))
			for _, s := range v {
				e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(len(s)))
				e.buffer = append(e.buffer, s...)
			}
		default:
			return nil, nil, fmt.Errorf("pgxdb: a parameter of type %T, must be []string, []int64, string, int64 or nil", arg)
		}
		value := e.buffer[start:len(e.buffer):len(e.buffer)]
		if value == nil {
			value = []byte{} // nil would be NULL
		}
		e.values, e.oids = append(e.values, value), append(e.oids, oid)
	}
	return e.values[first:], e.oids[first:], nil
}

func (e *encoder) reset() { e.buffer, e.values, e.oids = e.buffer[:0], e.values[:0], e.oids[:0] }

// array appends the header of a one-dimensional array without NULLs.
func (e *encoder) array(element uint32, length int) {
	header := []uint32{1, 0, element, uint32(length), 1} // dimensions, NULLs, type; length, first subscript
	if length == 0 {
		header = []uint32{0, 0, element}
	}
	for _, n := range header {
		e.buffer = binary.BigEndian.AppendUint32(e.buffer, n)
	}
}
