package pgwire

import (
	"bytes"
	"encoding/binary"
	"math/big"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Rows without NULLs whose columns are all of eight bytes are handed over many at
// a time, without a look at each of them. readRest takes apart all others.

// layout is how such a row looks.
type layout struct {
	head  []byte // the start of its message: type, length, number of columns
	size  int    // of the whole message
	cells int    // its columns in bytes, each with its length
}

// A cell is a column's length and its eight bytes.
const (
	cell     = "\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00"
	cellMask = "\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"
)

// maxBlock bounds what is handed over at a time.
const maxBlock = 16 << 10

var (
	emptyCells = bytes.Repeat([]byte(cell), maxBlock/len(cell))
	cellsMask  = new(big.Int).SetBytes(bytes.Repeat([]byte(cellMask), maxBlock/len(cell)))
)

// newLayout is the layout of rows with so many columns.
func newLayout(columns int) *layout {
	l := &layout{cells: columns * len(cell)}
	l.size = 7 + l.cells
	l.head = binary.BigEndian.AppendUint32([]byte{'D'}, uint32(l.size-1))
	l.head = binary.BigEndian.AppendUint16(l.head, uint16(columns))
	return l
}

// isEightBytes reports whether, in binary format, a type is of eight bytes.
func isEightBytes(oid uint32) bool {
	switch oid {
	case 20, 701, 1114, 1184: // bigint, double precision, timestamp, timestamptz
		return true
	}
	return false
}

// readRows hands over the rows of that layout at the start of what was seen. It
// returns what follows them, and the error of Rows.
func readRows(c *conn, st *ratelimit.Statement, l *layout, seen []byte) ([]byte, error) {
	size := l.size
	length := l.head[4]
	var rowErr error
	for {
		n := 0
		for n+size <= len(seen) && n+size <= maxBlock && seen[n] == 'D' && seen[n+4] == length {
			n += size
		}
		if n > 0 {
			// Should the bytes of a head be in a row as well, they are gone too,
			// and what is left is too short.
			block := bytes.ReplaceAll(seen[:n], l.head, nil)
			if len(block) != n/size*l.cells || !areCells(block) {
				return seen, rowErr
			}
			if rowErr == nil {
				rowErr = st.Rows(block)
			}
			seen = seen[n:]
			continue
		}
		if len(seen) >= size || !startsLike(seen, l.head) {
			return seen, rowErr
		}
		c.r = c.w - len(seen) // the next row is not all there yet
		if fill(c) != nil {
			return c.buf[c.r:c.w], rowErr // who reads on meets the same error
		}
		seen = c.buf[c.r:c.w]
	}
}

// areCells reports whether a block consists of cells: whether nothing but their
// lengths is left of it under the mask. An interpreter is faster to calculate
// with one large number than to look at each cell.
func areCells(block []byte) bool {
	lengths := &big.Int{}
	lengths.SetBytes(block)
	lengths.And(lengths, cellsMask)
	return bytes.HasPrefix(emptyCells, lengths.FillBytes(make([]byte, len(block))))
}

// startsLike reports whether what was seen of a message may become one that
// begins with head. A shorter row, with a NULL in it, does not: it may be all
// that the server has to say.
func startsLike(seen, head []byte) bool {
	if len(seen) < len(head) {
		return bytes.HasPrefix(head, seen)
	}
	return bytes.HasPrefix(seen, head)
}
