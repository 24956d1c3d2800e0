package history

import "github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"

const (
	parcelRows  = 1000
	parcelCells = 1000
)

// parcel holds the rows and cells that one transaction writes. A parcel with a number is immutable, because
// it may be sent again.
type parcel struct {
	number int64 // 0 until the parcel is first sent
	rows   []auditRow
	cells  []*cell // of one minute
}

// parcelSize is the total size of some parcels.
type parcelSize struct {
	rows     int
	bytes    int64 // of the texts of the rows
	records  int64 // in the rows
	requests int64 // in the cells
}

// add adds the size of a parcel if sign is 1, and subtracts it if sign is -1.
func (s *parcelSize) add(p *parcel, sign int64) {
	s.rows += int(sign) * len(p.rows)
	for i := range p.rows {
		s.bytes += sign * p.rows[i].bytes
		s.records += sign * p.rows[i].numbers[auditCount]
	}
	for _, c := range p.cells {
		s.requests += sign * c.requests()
	}
}

// split divides a parcel that was rejected, to find the row or cell that causes the rejection. A parcel with
// both rows and cells becomes one with the rows and one with the cells. Any other parcel becomes two halves.
// The result is nil for a single row or cell.
func (p *parcel) split() []*parcel {
	if len(p.rows) > 0 && len(p.cells) > 0 {
		return []*parcel{{rows: p.rows}, {cells: p.cells}}
	}
	r, c := len(p.rows)/2, len(p.cells)/2
	if r+c == 0 {
		return nil
	}
	return []*parcel{{rows: p.rows[:r], cells: p.cells[:c]}, {rows: p.rows[r:], cells: p.cells[c:]}}
}

const beginSQL = "SELECT rate_limit_begin_batch(writer => $1, node => $2, region => $3, batch => $4, " +
	"written => $5, dropped => $6)"

// statements returns the transaction that writes a parcel. written is the number of records that the Writer
// has written, including this parcel, and dropped the number that it has dropped.
func (w *Writer) statements(p *parcel, written, dropped int64) []*pgdb.Statement {
	node, region := w.settings.Node, w.settings.Region
	statements := []*pgdb.Statement{{
		SQL: beginSQL, Args: []any{w.name, node, region, p.number, written, dropped}, Joined: true,
	}}
	var rows, cells []tableRow
	for i := range p.rows {
		rows = append(rows, tableRow{p.rows[i].numbers[:], p.rows[i].texts[:]})
	}
	for _, c := range p.cells {
		cells = append(cells, c.row())
	}
	if rows != nil {
		statements = append(statements, audit.statement([]any{node, region}, rows))
	}
	if cells != nil {
		statements = append(statements, metrics.statement([]any{region}, cells))
	}
	statements[0].Synchronous = true
	statements[len(statements)-1].Joined = false
	return statements
}
