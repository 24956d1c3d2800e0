package algorithm

import (
	"encoding/binary"
)

// SQL holds the parts of a statement that differ between algorithms. The store builds its statements from
// them. A statement decides many entries. An entry is a number of equal hits on one row.
type SQL struct {
	// Columns lists the columns of the state. Returned is the expression that a statement returns for them;
	// "" means Columns. It replaces common NULL values, because rows without NULL are read faster.
	Columns  string
	Returned string

	// PeekReturned replaces Returned in a peek; "" means Returned.
	PeekReturned string

	// ReadExpires adds expires_at to the returned columns.
	ReadExpires bool

	// Needs names the parameters of an entry that the step reads besides n, cost, quota (the limit's
	// Capacity) and span (its Window in microseconds). first is the first slot that the entry takes, or the
	// process for which it holds units. sums has the sums of the reservations, as an array of bigint.
	Needs string

	// Fresh lists the values of the columns and of expires_at for a key without a row, after granted hits. It
	// can use i.granted, i.now, the entry's parameters by their names in braces ({cost}, {quota} …), and w:
	// the one row of the query Window, which can use the clock and the parameters. "" has none.
	Fresh  string
	Window string

	// Grants is the number of an entry's n hits that a key without a row grants; "" means as many as fit into
	// the quota.
	Grants string

	// Step is a query that returns ord, granted, the columns and expires_at for a key with a row. It can use
	// r (the current row), excluded (the row that Fresh would insert), {most}, which bounds granted, and the
	// parameters as in Fresh. A subquery computes each value that is used twice. Its OFFSET 0 prevents
	// the planner from copying the expression to each use. Every operator costs time, even if it is not
	// reached, because each execution prepares all operators of a statement.
	Step string

	// Reset holds the assignments of a reset that not all algorithms have; "" means none.
	Reset string

	// Adjust holds the assignments that implement Definition.Adjust on the row r if AdjustWhere is true. Both
	// can use r, the parameters as in Step, {events}, {claimed} (the time of the charge, or NULL) and {now}.
	// AdjustWhere is false for a blank row.
	Adjust      string
	AdjustWhere string

	// Read reads the state of rows from a result in which every column has eight bytes. The state of rows[i]
	// starts at cells[i*width]. ReadArray instead reads a state that is one array column.
	Read      func(cells []Cell, width int, rows []*Row)
	ReadArray func(column []byte, r *Row)

	// Width is the number of columns of state in a result. The package sets it.
	Width int
}

// Cell is a number or a time in a result. It has the layout of a column of eight bytes in Postgres's binary
// format, so that one call decodes any number of cells. If Length is not 8, the column is NULL and Value is
// 0.
type Cell struct {
	Length int32
	Value  int64
}

// PostgresEpoch is 2000-01-01, the origin of Postgres's timestamps, in microseconds since the Unix epoch.
const PostgresEpoch = 946684800000000

// timestamps decodes a timestamptz[] column without NULL elements. For NULL it returns nil.
func timestamps(column []byte) []int64 {
	const header, element = 20, 12 // dimensions, flags, type, length, lower bound; length and value
	if len(column) < header {
		return nil
	}
	times := make([]int64, 0, (len(column)-header)/element)
	for i := header; i+element <= len(column); i += element {
		times = append(times, int64(binary.BigEndian.Uint64(column[i+element-8:]))+PostgresEpoch)
	}
	return times
}
