package history

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// UpkeepReport says what Upkeep did. Partitions are given by the names of their tables, with the
// schema. Empty lists are not nil, so that they are [] in JSON.
type UpkeepReport struct {
	// Busy reports that another process was doing the upkeep, so that this one did nothing.
	Busy bool `json:"busy"`

	Made    []string `json:"made"`    // new partitions
	Deleted int64    `json:"deleted"` // rows of metrics and writers
	Dropped []string `json:"dropped"` // partitions that were deleted

	// Skipped lists the partitions that should have been dropped and are in use, with their users, such as
	// "public.rate_limit_audit_20260101: held by pid 4711". "rate_limit_audit: held by another session"
	// means that no partition could be created.
	Skipped []string `json:"skipped"`
}

// IsNothing reports whether the upkeep changed nothing.
func (r *UpkeepReport) IsNothing() bool {
	return !r.Busy && r.Deleted == 0 && len(r.Made)+len(r.Dropped)+len(r.Skipped) == 0
}

// Upkeep maintains the history, which needs it about once a minute. It creates the partitions of today
// and the next 7 days, and deletes what is past its retention at the time now.
// The zero time means the present by the clock of the database. Any number of processes may call it at
// any time. Only the owner of the tables can create partitions for another time than the present, or
// delete what is due in the future.
//
// Writers wait for up to 100 ms while it drops partitions. It skips those that another session uses, and
// the next Upkeep retries. The report says what was done before an error.
func Upkeep(ctx context.Context, db pgdb.DB, now time.Time) (UpkeepReport, error) {
	return doUpkeep(ctx, db, now, 0)
}

// The queries of an upkeep. Time $1 is text, so that any driver can send it.
const (
	upkeepSQL = `SELECT what, name, rows FROM rate_limit_upkeep($1::text::timestamptz, $2::text::interval)`
	dropSQL   = `SELECT name, held_by FROM rate_limit_drop_expired($1::text::timestamptz)`
)

// doUpkeep is Upkeep if no process has done it within interval.
func doUpkeep(ctx context.Context, db pgdb.DB, now time.Time, interval time.Duration) (UpkeepReport, error) {
	r := UpkeepReport{Made: []string{}, Dropped: []string{}, Skipped: []string{}}
	text := "now"
	if !now.IsZero() {
		text = now.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
	}
	did, err := query(ctx, db, 3, upkeepSQL, text, intervalText(interval))
	for _, row := range did {
		switch string(row[0]) {
		case "busy":
			r.Busy = true
			return r, nil
		case "made":
			r.Made = append(r.Made, string(row[1]))
		case "skipped":
			r.Skipped = append(r.Skipped, string(row[1])+": held by another session")
		case "deleted":
			r.Deleted += number(row[2])
		}
	}
	if err != nil {
		return r, fmt.Errorf("upkeep of the history: %w", err)
	}
	dropped, err := query(ctx, db, 2, dropSQL, text)
	for _, row := range dropped {
		if row[1] != nil {
			r.Skipped = append(r.Skipped, string(row[0])+": held by "+string(row[1]))
		} else {
			r.Dropped = append(r.Dropped, string(row[0]))
		}
	}
	if err != nil {
		return r, fmt.Errorf("dropping expired partitions of the history: %w", err)
	}
	return r, nil
}

// query runs a query with parameters of type text, and returns the values of its rows. NULL is nil, and
// an empty text is not.
func query(ctx context.Context, db pgdb.DB, columns int, sql string, args ...string) ([][][]byte, error) {
	statement := &pgdb.Statement{SQL: sql, Unnamed: true}
	for _, arg := range args {
		statement.Args = append(statement.Args, arg)
	}
	if err := db.Run(ctx, []*pgdb.Statement{statement}); err != nil {
		return nil, err
	}
	if statement.Err != nil {
		return nil, statement.Err
	}
	values, err := pg.Columns(statement.Result)
	if err != nil {
		return nil, err
	}
	var rows [][][]byte
	for ; len(values) >= columns; values = values[columns:] {
		rows = append(rows, values[:columns:columns])
	}
	return rows, nil
}

// number returns the value of a bigint, and 0 for NULL.
func number(value []byte) int64 {
	if len(value) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(value))
}
