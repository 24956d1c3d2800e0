package ratelimit

import (
	"encoding/binary"
	"errors"
)

// A row of a statement's result is slot, granted, the time, and then the state.
const (
	timeColumn  = 2
	stateColumn = 3
)

// cell is a column that is a number or a time. Length is 8, or else the value is
// 0 and stands for NULL. Its form is that of eight bytes in Postgres's binary
// format, so that one call reads any number of cells.
type cell struct {
	Length int32
	Value  int64
}

const cellSize = 12

// appendCells appends a row's columns to cells. What is no number is NULL.
func appendCells(cells []cell, columns [][]byte) []cell {
	for _, column := range columns {
		c := cell{}
		if len(column) == 8 || len(column) == 4 {
			c.Length = 8
			c.Value = bigint(column)
		}
		cells = append(cells, c)
	}
	return cells
}

// answer takes in rows. It is one loop over all of them, and so is scan, since an
// interpreter pays far more for a call than for a round of a loop.
func answer(g *group, cells []cell) error {
	if len(cells)%g.width != 0 {
		return errColumns
	}
	items := g.items
	last := int64(len(items))
	rows := g.rows[:0]
	now := int64(0)
	if len(cells) > timeColumn {
		now = cells[timeColumn].Value + postgresEpoch // the same in all rows
	}
	for at := 0; at < len(cells); at += g.width {
		slot := cells[at].Value
		if slot < 1 || slot > last {
			return errColumns
		}
		it := items[slot-1]
		it.answered = true
		it.now = now
		it.granted = cells[at+1].Value
		rows = append(rows, &it.row)
	}
	g.rows = rows
	if g.step.scan != nil && len(rows) > 0 {
		g.step.scan(cells[stateColumn:], g.width, rows)
	}
	return nil
}

// postgresEpoch is 2000-01-01 in microseconds since the Unix epoch: timestamps
// in binary format count from there.
const postgresEpoch = 946684800000000

var errColumns = errors.New("ratelimit: the server's answer does not have the statement's columns")

// bigint reads a bigint or an int column; NULL is 0.
func bigint(column []byte) int64 {
	if len(column) != 8 {
		return integer(column)
	}
	return int64(binary.BigEndian.Uint64(column))
}

// integer reads an int column; NULL is 0.
func integer(column []byte) int64 {
	if len(column) != 4 {
		return 0
	}
	return int64(int32(binary.BigEndian.Uint32(column)))
}

// timestamp reads a timestamptz column as microseconds since the Unix epoch;
// NULL is 0.
func timestamp(column []byte) int64 {
	if len(column) != 8 {
		return 0
	}
	return bigint(column) + postgresEpoch
}

// timestamps reads a timestamptz[] column without NULLs; NULL is none.
func timestamps(column []byte) []int64 {
	const header, element = 20, 12 // dimensions, flags, type, length, lower bound; length and value
	if len(column) < header {
		return nil
	}
	times := make([]int64, 0, (len(column)-header)/element)
	for at := header; at+element <= len(column); at += element {
		times = append(times, timestamp(column[at+element-8:at+element]))
	}
	return times
}
