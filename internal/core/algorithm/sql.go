package algorithm

import (
	"encoding/binary"
)

// SQL is an algorithm's step in SQL: the parts of a statement that differ from one
// algorithm to the next. Package postgres has the statements. A statement decides many
// entries at once: an entry is a number of equal hits on one row.
type SQL struct {
	// Columns are the state, as the table names them. Returned is what a statement
	// returns for them; "" means the columns. It differs where NULL is usual, since
	// rows without NULL are read faster.
	Columns  string
	Returned string

	// Looked is what a look returns instead; "" is the same.
	Looked string

	// ReadExpires adds expires_at to what a statement returns.
	ReadExpires bool

	// Needs are the parameters of an entry that the step reads besides n, cost, quota
	// (the limit's Capacity) and span (its Window in microseconds).
	Needs []Parameter

	// Fresh are the values of the columns, and then of expires_at, for a key without a
	// row after granted hits. It can use i.granted, i.now, the entry's parameters by their
	// names in braces ({cost}, {quota} …), and the columns of From, which continues the
	// FROM clause after i. From adds columns to an entry, and never entries.
	Fresh string
	From  string

	// Step is a query that returns slot, granted, the columns and expires_at for a key
	// that has a row. It can use r (the row as it is), excluded (what Fresh would
	// insert: no row admits more than excluded.granted), and the parameters as in Fresh.
	// A value that is used twice is computed once, in a subquery; OFFSET 0 keeps the
	// planner from copying the expression to each use. Every operator costs time even if
	// it is not reached, because the server prepares all operators of a statement each
	// time.
	Step string

	// Reset are further assignments of a reset.
	Reset string

	// Adjust are assignments that give cost back to the row r, or charge it, if AdjustWhere is
	// true. Both can use r, the parameters as in Step, always {events} among them, {claimed} (when the
	// cost was charged, or NULL) and {now}. AdjustWhere is false for a blank row.
	Adjust      string
	AdjustWhere string

	// Read reads the state from a result in which every column has eight bytes. The state of the
	// first row begins at cells[0], the state of the next row width cells later.
	// ReadArray reads a state that is one array column instead.
	Read      func(cells []Cell, width int, rows []*Row)
	ReadArray func(column []byte, r *Row)

	// Width is how many columns of state a statement returns. It is set with the definition.
	Width int
}

// Parameter is a value that each entry of a statement has.
type Parameter struct {
	Name string
	Type string
}

// The parameters that Needs can name.
var (
	EventsParameter   = Parameter{"events", "bigint"}
	UnitParameter     = Parameter{"unit", "text"}
	TimeZoneParameter = Parameter{"zone", "text"}
	AnchorParameter   = Parameter{"anchor", "bigint"}
	SlotParameter     = Parameter{"first", "bigint"} // of each entry: the first slot that it takes
)

// Cell is a column of a result that is a number or a time. Its layout is that of a column
// of eight bytes in Postgres's binary format, so that one call decodes any number of
// them. If Length is not 8, the column is NULL and Value is 0.
type Cell struct {
	Length int32
	Value  int64
}

// PostgresEpoch is 2000-01-01 in microseconds since the Unix epoch. Postgres's timestamps
// count from there.
const PostgresEpoch = 946684800000000

// timestamps reads a timestamptz[] column without NULLs; NULL is none.
func timestamps(column []byte) []int64 {
	const header, element = 20, 12 // dimensions, flags, type, length, lower bound; length and value
	if len(column) < header {
		return nil
	}
	times := make([]int64, 0, (len(column)-header)/element)
	for at := header; at+element <= len(column); at += element {
		times = append(times, int64(binary.BigEndian.Uint64(column[at+element-8:]))+PostgresEpoch)
	}
	return times
}

// readCounts reads count, prev_count and window_start. A refund of the npm library
// can leave a count below 0. Here, and in the statements, such a count is 0.
func readCounts(cells []Cell, width int, rows []*Row) {
	at := 0
	for _, r := range rows {
		r.Count = cells[at].Value
		if r.Count < 0 {
			r.Count = 0
		}
		r.PrevCount = cells[at+1].Value
		if r.PrevCount < 0 {
			r.PrevCount = 0
		}
		if cells[at+2].Length == 8 {
			r.Start = cells[at+2].Value + PostgresEpoch
		}
		at += width
	}
}
