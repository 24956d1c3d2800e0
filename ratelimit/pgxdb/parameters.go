package pgxdb

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"
)

// parameters holds the encoded parameters of a statement. Its memory is reused. A pgtype.Map would encode the
// parameters by reflection, which takes twice the time.
type parameters struct {
	values  [][]byte
	formats []int16
	buffer  []byte // holds values, or some of them after it has grown
}

// maxBuffer is the number of bytes up to which parameters keeps its memory.
const maxBuffer = 64 << 10

// The formats of parameters. Arrays are binary. Other parameters are text, which is valid for each type that
// the server may have inferred when an earlier parameter was NULL.
const (
	textFormat   = 0
	binaryFormat = 1
)

// typeOf returns the OID of a parameter's type. 0 is the type that the server infers from the SQL.
func typeOf(arg any) uint32 {
	switch arg.(type) {
	case string:
		return pgtype.TextOID
	case int64:
		return pgtype.Int8OID
	case []string:
		return pgtype.TextArrayOID
	case []int64:
		return pgtype.Int8ArrayOID
	}
	return 0
}

// encode replaces the parameters by args, or returns an error for a type that pgdb.Statement.Args excludes.
func (p *parameters) encode(args []any) error {
	p.values, p.formats, p.buffer = p.values[:0], p.formats[:0], p.buffer[:0]
	if n := cap(p.buffer); n == 0 || n > maxBuffer {
		p.buffer = make([]byte, 0, 1024)
	}
	for _, arg := range args {
		start, format, null := len(p.buffer), int16(textFormat), false
		switch v := arg.(type) {
		case nil:
			null = true
		case string:
			p.buffer = append(p.buffer, v...)
		case int64:
			p.buffer = strconv.AppendInt(p.buffer, v, 10)
		case []string:
			format, null = binaryFormat, v == nil
			p.beginArray(pgtype.TextOID, len(v))
			for _, text := range v {
				p.buffer = append(binary.BigEndian.AppendUint32(p.buffer, uint32(len(text))), text...)
			}
		case []int64:
			format, null = binaryFormat, v == nil
			p.beginArray(pgtype.Int8OID, len(v))
			for _, n := range v {
				p.buffer = binary.BigEndian.AppendUint64(append(p.buffer, 0, 0, 0, 8), uint64(n))
			}
		default:
			return fmt.Errorf("pgxdb: a parameter of type %T", arg)
		}
		value := p.buffer[start:]
		if null {
			value = nil
		}
		p.values, p.formats = append(p.values, value), append(p.formats, format)
	}
	return nil
}

// beginArray appends the header of an array with n elements.
func (p *parameters) beginArray(element uint32, n int) {
	const dimensions, nulls, lowerBound = 1, 0, 1
	for _, word := range []uint32{dimensions, nulls, element, uint32(n), lowerBound} {
		p.buffer = binary.BigEndian.AppendUint32(p.buffer, word)
	}
}
