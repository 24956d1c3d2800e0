package archive

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/parquet-go/parquet-go"
)

// Fingerprint tells whether two sets of rows are equal. It does not depend on the order of the
// rows.
type Fingerprint struct {
	Rows int64 `json:"rows"`
	// First and Last are the times of the first and the last row, in microseconds since 1970.
	// They are 0 without rows.
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	// Row is the sum of the hashes of the rows, modulo 2^64, in hexadecimal.
	Row string `json:"row"`
	// Columns are the sums of the hashes of the values of each column.
	Columns map[string]string `json:"columns"`
}

// Equal tells whether the rows are the same.
func (f Fingerprint) Equal(other Fingerprint) bool {
	return f.Rows == other.Rows && f.First == other.First && f.Last == other.Last && f.Row == other.Row && maps.Equal(f.Columns, other.Columns)
}

// difference names the first thing that differs, for an error.
func (f Fingerprint) difference(other Fingerprint) string {
	switch {
	case f.Rows != other.Rows:
		return fmt.Sprintf("it has %d rows, want %d", f.Rows, other.Rows)
	case f.First != other.First || f.Last != other.Last:
		return "its first or last row has another time"
	}
	for _, name := range slices.Sorted(maps.Keys(other.Columns)) {
		if f.Columns[name] != other.Columns[name] {
			return "the checksum of its column " + name + " differs"
		}
	}
	return "the checksum of its rows differs"
}

// hasher adds rows up to a Fingerprint.
type hasher struct {
	rows, first, last int64
	row               uint64
	columns           []uint64
	names             []string // of the columns
	order             []int    // the columns of which the hash of a row is made
	time              int      // the column with the time

	// scratch holds a value, the hashes of a row's columns, or those in their order.
	value, bytes []byte
	hashes       []uint64
}

func newHasher(names []string) *hasher {
	h := &hasher{names: names, columns: make([]uint64, len(names)), hashes: make([]uint64, len(names))}
	for i, name := range names {
		h.order = append(h.order, i)
		if name == "time" {
			h.time = i
		}
	}
	return h
}

// add adds a row.
func (h *hasher) add(row parquet.Row) {
	digest := h.digest(row, h.columns)
	t := h.rowTime(row)
	if h.rows == 0 || t < h.first {
		h.first = t
	}
	if h.rows == 0 || t > h.last {
		h.last = t
	}
	h.rows++
	h.row += digest
}

// digest is the hash of a row. The hashes of its columns are added to sums, if that is not nil.
func (h *hasher) digest(row parquet.Row, sums []uint64) uint64 {
	for len(row) > 0 {
		i := row[0].Column()
		h.value = h.value[:0]
		for len(row) > 0 && row[0].Column() == i { // a list has several values
			h.value = appendValue(h.value, row[0])
			row = row[1:]
		}
		sum := xxhash.Sum64(h.value)
		if sums != nil {
			sums[i] += sum
		}
		h.hashes[i] = sum
	}
	h.bytes = h.bytes[:0]
	for _, i := range h.order {
		h.bytes = binary.LittleEndian.AppendUint64(h.bytes, h.hashes[i])
	}
	return xxhash.Sum64(h.bytes)
}

// appendValue appends a value in a form that no other value has.
func appendValue(to []byte, v parquet.Value) []byte {
	to = append(to, byte(v.DefinitionLevel())) // tells NULL from other values
	if v.IsNull() {
		return to
	}
	switch v.Kind() {
	case parquet.Int64:
		return binary.LittleEndian.AppendUint64(to, uint64(v.Int64()))
	case parquet.Int32:
		return binary.LittleEndian.AppendUint32(to, uint32(v.Int32()))
	case parquet.Double:
		return binary.LittleEndian.AppendUint64(to, math.Float64bits(v.Double()))
	default:
		b := v.ByteArray()
		return append(binary.AppendUvarint(to, uint64(len(b))), b...)
	}
}

// rowTime is the time of a row in microseconds since 1970.
func (h *hasher) rowTime(row parquet.Row) int64 {
	for _, v := range row {
		if v.Column() == h.time {
			return v.Int64()
		}
	}
	return 0
}

func (h *hasher) fingerprint() Fingerprint {
	f := Fingerprint{Rows: h.rows, First: h.first, Last: h.last, Row: hex(h.row), Columns: make(map[string]string, len(h.names))}
	for i, name := range h.names {
		f.Columns[name] = hex(h.columns[i])
	}
	return f
}

func hex(sum uint64) string { return fmt.Sprintf("%016x", sum) }
