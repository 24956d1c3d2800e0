package pgxdb

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"
)

// encoder turns a statement's arguments into Postgres's binary format, in
// memory that the next pipeline uses again.
type encoder struct {
	buffer []byte
	values [][]byte
	oids   []uint32
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

func (e *encoder) reset() { e.buffer = e.buffer[:0] }

// encode sets values and oids. Values of earlier calls stay valid until reset:
// where the buffer moves, they keep the old one.
func (e *encoder) encode(args []any) error {
	e.values, e.oids = e.values[:0], e.oids[:0]
	for _, arg := range args {
		start := len(e.buffer)
		oid := uint32(0)
		switch v := arg.(type) {
		case nil:
			e.values, e.oids = append(e.values, nil), append(e.oids, pgtype.Int8OID)
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
			return fmt.Errorf("pgxdb: an argument of type %T; want []string, []int64, string, int64 or nil", arg)
		}
		value := e.buffer[start:len(e.buffer):len(e.buffer)]
		if value == nil {
			value = []byte{} // nil would be NULL
		}
		e.values, e.oids = append(e.values, value), append(e.oids, oid)
	}
	return nil
}

// array appends the header of a one-dimensional array without NULLs.
func (e *encoder) array(element uint32, length int) {
	dimensions := uint32(1)
	if length == 0 {
		dimensions = 0
	}
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, dimensions)
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, 0)
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, element)
	if length > 0 {
		e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(length))
		e.buffer = binary.BigEndian.AppendUint32(e.buffer, 1)
	}
}
