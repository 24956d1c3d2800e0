package history

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// table lists the columns that a Writer sends to an SQL function. The numbers and texts of a tableRow have
// the order of the table's numbers and texts. Each column is sent as an array in a named argument, so the SQL
// function does not depend on this order.
type table struct {
	function       string
	shared         []string // arguments with the same value for all rows
	numbers, texts []string
	sql            string // the call of the function
}

// newTable sets the call of a table's function.
func newTable(t *table) *table {
	var names []string
	names = append(append(append(names, t.shared...), t.numbers...), t.texts...)
	for i, name := range names {
		names[i] = `"` + name + `" => $` + strconv.Itoa(i+1)
	}
	t.sql = "SELECT " + t.function + "(" + strings.Join(names, ", ") + ")"
	return t
}

// tableRow holds the values of a row of a table.
type tableRow struct {
	numbers []int64
	texts   []string
	bytes   int64 // of the texts of a row of the audit log
}

// sumRecords returns the number of records in rows, which has the same place in both tables.
func sumRecords(rows []tableRow) int64 {
	n := int64(0)
	for i := range rows {
		n += rows[i].numbers[auditCount]
	}
	return n
}

// statement returns the statement that writes rows. args has the values of the shared arguments.
func (t *table) statement(args []any, rows []tableRow) *pgdb.Statement {
	for i := range t.numbers {
		values := make([]int64, len(rows))
		for j := range rows {
			values[j] = rows[j].numbers[i]
		}
		args = append(args, values)
	}
	for i := range t.texts {
		values := make([]string, len(rows))
		for j := range rows {
			values[j] = rows[j].texts[i]
		}
		args = append(args, values)
	}
	return &pgdb.Statement{SQL: t.sql, Args: args}
}
