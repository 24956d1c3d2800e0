package history

import "github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"

// parcelRows bounds the rows of a parcel.
const parcelRows = 1000

// parcel holds the rows of one table that one transaction writes. Without rows, it only writes the numbers of
// records. A parcel with a number is immutable, because it may be sent again.
type parcel struct {
	number int64 // 0 until the parcel is first sent
	table  *table
	rows   []tableRow // those of metrics are of one minute
}

// split returns the halves of a parcel that was rejected, to find the row that causes the rejection, or nil
// if it has a single row.
func (p *parcel) split() []*parcel {
	half := len(p.rows) / 2
	if half == 0 {
		return nil
	}
	return []*parcel{{table: p.table, rows: p.rows[:half]}, {table: p.table, rows: p.rows[half:]}}
}

const beginSQL = "SELECT rate_limit_begin_batch(writer => $1, node => $2, region => $3, batch => $4, " +
	"written => $5, dropped => $6)"

// statements returns the transaction that writes a parcel. written is the number of records that the Writer
// has written, including this parcel, and dropped the number that it has dropped.
func (w *Writer) statements(p *parcel, written, dropped int64) []*pgdb.Statement {
	node, region := w.settings.Node, w.settings.Region
	begin := &pgdb.Statement{SQL: beginSQL, Args: []any{w.name, node, region, p.number, written, dropped},
		Joined: len(p.rows) > 0, Synchronous: true}
	if !begin.Joined {
		return []*pgdb.Statement{begin}
	}
	shared := []any{region}
	if p.table == audit {
		shared = append(shared, node)
	}
	return []*pgdb.Statement{begin, p.table.statement(shared, p.rows)}
}
