package archive

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"
)

// readTable calls read for each row of a partition, sorted by time. The transaction must be open. read
// may keep nothing of the row.
func readTable(ctx context.Context, conn *pgx.Conn, p partition, columns []column, read func(parquet.Row) error) error {
	names := make([]string, len(columns))
	targets := make([]any, len(columns))
	for i, c := range columns {
		names[i], targets[i] = c.sql(), c.kind().target()
	}
	// The description of the result lets the server send it in the binary form.
	result, err := conn.Query(ctx, "SELECT "+strings.Join(names, ", ")+" FROM ONLY "+p.table+" ORDER BY time", pgx.QueryExecModeDescribeExec)
	if err != nil {
		return err
	}
	var row parquet.Row
	_, err = pgx.ForEachRow(result, targets, func() error {
		row = row[:0]
		for i, c := range columns {
			var err error
			if row, err = c.appendTo(row, i, targets[i]); err != nil {
				return err
			}
		}
		return read(row)
	})
	return err
}
