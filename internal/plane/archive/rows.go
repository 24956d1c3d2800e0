package archive

import (
	"context"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
)

// readTable calls read for each row of a table, sorted by time. The transaction must be open.
func readTable(ctx context.Context, conn *pgx.Conn, table string, read func(*auditRow) error) error {
	// Only its text says whether an address is a network.
	columns := strings.Replace(strings.Join(columnNames, ", "), "address", "abbrev(address)", 1)
	// The description of the result lets the server send it in the binary form.
	result, err := conn.Query(ctx, "SELECT "+columns+" FROM ONLY "+table+" ORDER BY time", pgx.QueryExecModeDescribeExec)
	if err != nil {
		return err
	}
	var row auditRow
	values := reflect.ValueOf(&row.auditValues).Elem()
	var targets []any
	for i := range values.NumField() {
		targets = append(targets, values.Field(i).Addr().Interface())
	}
	targets = append(targets, &row.Also)
	_, err = pgx.ForEachRow(result, targets, func() error { return read(&row) })
	return err
}
