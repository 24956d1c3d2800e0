package archive

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"
)

// batchRows is how many rows are written at once.
const batchRows = 256

// selectRows is the query for the rows of a table, sorted by time.
func selectRows(table string) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = pgx.Identifier{c.name}.Sanitize()
	}
	return "SELECT " + strings.Join(names, ", ") + " FROM ONLY " + table + " ORDER BY time"
}

// resultFormats are the formats in which Postgres sends the columns: binary, but addresses as
// text.
func resultFormats() []int16 {
	formats := make([]int16, len(columns))
	for i, c := range columns {
		if c.kind != inet {
			formats[i] = pgx.BinaryFormatCode
		}
	}
	return formats
}

// readTable sends the rows of a table to write, sorted by time. The rows are valid until write
// returns. The transaction must be open.
func readTable(ctx context.Context, conn *pgx.Conn, table string, write func([]parquet.Row) error) error {
	result := conn.PgConn().ExecParams(ctx, selectRows(table), nil, nil, nil, resultFormats())
	batch := make([]parquet.Row, 0, batchRows)
	var d decoder
	failed := error(nil)
	for failed == nil && result.NextRow() {
		// The rows of earlier batches keep their memory.
		batch = slices.Grow(batch, 1)[:len(batch)+1]
		last := &batch[len(batch)-1]
		if *last, failed = d.row((*last)[:0], result.Values()); failed == nil && len(batch) == batchRows {
			failed = write(batch)
			batch, d.memory = batch[:0], d.memory[:0]
		}
	}
	_, err := result.Close() // reads what is left
	if failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	if len(batch) == 0 {
		return nil
	}
	return write(batch)
}

// decoder makes values of a file from what Postgres sends.
type decoder struct {
	memory []byte // of the texts of a batch
}

// row appends the values of a row.
func (d *decoder) row(row parquet.Row, values [][]byte) (parquet.Row, error) {
	if len(values) != len(columns) {
		return row, fmt.Errorf("a row has %d columns, want %d", len(values), len(columns))
	}
	for i, c := range columns {
		var err error
		if row, err = d.value(row, i, c, values[i]); err != nil {
			return row, fmt.Errorf("column %s: %w", c.name, err)
		}
	}
	return row, nil
}

// postgresEpoch is 2000-01-01, from which Postgres counts, in microseconds since 1970.
const postgresEpoch = 946_684_800_000_000

// value appends the values of a column of a row: one, or the elements of a list.
func (d *decoder) value(row parquet.Row, i int, c column, v []byte) (parquet.Row, error) {
	if v == nil {
		if !c.nullable {
			return row, fmt.Errorf("is NULL")
		}
		return append(row, parquet.NullValue().Level(0, 0, i)), nil
	}
	level := 0
	if c.nullable {
		level = 1
	}
	var value parquet.Value
	switch size := c.kind.bytes(); {
	case size != 0 && size != len(v):
		return row, fmt.Errorf("has %d bytes, want %d", len(v), size)
	case c.kind == texts:
		return d.list(row, i, v)
	case c.kind == timestamp:
		t := int64(binary.BigEndian.Uint64(v))
		if t > math.MaxInt64-postgresEpoch || t == math.MinInt64 {
			return row, fmt.Errorf("is infinite")
		}
		value = parquet.Int64Value(t + postgresEpoch)
	case c.kind == bigint:
		value = parquet.Int64Value(int64(binary.BigEndian.Uint64(v)))
	case c.kind == integer:
		value = parquet.Int32Value(int32(binary.BigEndian.Uint32(v)))
	case c.kind == double:
		value = parquet.DoubleValue(math.Float64frombits(binary.BigEndian.Uint64(v)))
	default:
		value = parquet.ByteArrayValue(d.keep(v))
	}
	return append(row, value.Level(0, level, i)), nil
}

// keep copies bytes, since those of the driver are valid only until the next row.
func (d *decoder) keep(v []byte) []byte {
	begin := len(d.memory)
	d.memory = append(d.memory, v...)
	return d.memory[begin:len(d.memory):len(d.memory)]
}

// list appends the elements of an array of Postgres. Its binary form has numbers of 4 bytes: of
// dimensions, a flag, the type, for each dimension its length and first index; then for each
// element its length, or -1 for NULL, and its bytes.
func (d *decoder) list(row parquet.Row, i int, v []byte) (parquet.Row, error) {
	next := func() int32 {
		if len(v) < 4 {
			v = nil
			return -2
		}
		n := int32(binary.BigEndian.Uint32(v))
		v = v[4:]
		return n
	}
	dimensions := next()
	_, _ = next(), next()
	switch {
	case dimensions == 0:
		return append(row, parquet.NullValue().Level(0, levelEmptyList, i)), nil
	case dimensions != 1:
		return row, fmt.Errorf("has %d dimensions, want 1", dimensions)
	}
	count, _ := next(), next()
	for n := range count {
		repetition := 1
		if n == 0 {
			repetition = 0
		}
		size := next()
		switch {
		case size == -1:
			row = append(row, parquet.NullValue().Level(repetition, levelNullElement, i))
			continue
		case size < 0 || int(size) > len(v):
			return row, fmt.Errorf("is not an array")
		}
		row = append(row, parquet.ByteArrayValue(d.keep(v[:size])).Level(repetition, levelElement, i))
		v = v[size:]
	}
	return row, nil
}
