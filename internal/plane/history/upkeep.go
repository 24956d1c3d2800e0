package history

import (
	"context"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// UpkeepReport describes the effects of Upkeep. Partitions have the names of their tables, with the schema.
// Empty lists are not nil, so that they are [] in JSON.
type UpkeepReport struct {
	// Busy reports that this upkeep did nothing, because another process was doing it.
	Busy bool `json:"busy"`

	Made    []string `json:"made"`    // new partitions
	Deleted int64    `json:"deleted"` // rows of metrics and writers
	Dropped []string `json:"dropped"` // partitions that were deleted

	// Skipped lists the expired partitions that are in use, with their users, such as
	// "public.rate_limit_audit_20260101: held by pid 4711". "rate_limit_audit: held by another session" means
	// that no partition could be created.
	Skipped []string `json:"skipped"`
}

// IsNothing reports whether the upkeep changed nothing.
func (r *UpkeepReport) IsNothing() bool {
	return !r.Busy && r.Deleted == 0 && len(r.Made)+len(r.Dropped)+len(r.Skipped) == 0
}

// Upkeep maintains the history. Call it about once a minute; any number of processes may do so. Upkeep
// creates the partitions of today and the next 7 days, and deletes rows that are past their retention at the
// time now. The zero time means the current time of the database. Any other time requires the owner of the
// tables, to create partitions for that time or to delete rows before their retention ends.
//
// While Upkeep drops partitions, Writers wait for up to 100 ms. Upkeep skips partitions that another session
// uses; the next Upkeep retries them. After an error, the report has the effects so far.
func Upkeep(ctx context.Context, db pgdb.DB, now time.Time) (UpkeepReport, error) {
	return doUpkeep(ctx, db, now, 0)
}

// The queries of an upkeep return effects, each with an object and a number of rows. The time $1 is text, so
// that any driver can send it.
const (
	upkeepSQL = `SELECT what, CASE what WHEN 'skipped' THEN name || ': held by another session' ELSE name END,
		rows FROM rate_limit_upkeep($1::text::timestamptz, $2::text::interval)`
	dropSQL = `SELECT CASE WHEN held_by IS NULL THEN 'dropped' ELSE 'skipped' END,
		concat_ws(': held by ', name, held_by), NULL FROM rate_limit_drop_expired($1::text::timestamptz)`
)

// doUpkeep is like Upkeep, but does nothing if an upkeep ran within interval.
func doUpkeep(ctx context.Context, db pgdb.DB, now time.Time, interval time.Duration) (UpkeepReport, error) {
	r := UpkeepReport{Made: []string{}, Dropped: []string{}, Skipped: []string{}}
	atText := "now"
	if !now.IsZero() {
		atText = now.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
	}
	err := r.query(ctx, db, upkeepSQL, atText, intervalText(interval))
	if err == nil && !r.Busy {
		err = r.query(ctx, db, dropSQL, atText)
	}
	if err != nil {
		err = fmt.Errorf("upkeep of the history: %w", err)
	}
	return r, err
}

// query runs a query with parameters of type text, and adds its rows to the report.
func (r *UpkeepReport) query(ctx context.Context, db pgdb.DB, sql string, args ...any) error {
	statement := &pgdb.Statement{SQL: sql, Args: args, Unnamed: true}
	if err := db.Run(ctx, []*pgdb.Statement{statement}); err != nil {
		return err
	}
	if statement.Err != nil {
		return statement.Err
	}
	values, err := pg.Columns(statement.Result)
	for ; len(values) >= 3; values = values[3:] {
		name := string(values[1])
		switch string(values[0]) {
		case "busy":
			r.Busy = true
		case "made":
			r.Made = append(r.Made, name)
		case "dropped":
			r.Dropped = append(r.Dropped, name)
		case "skipped":
			r.Skipped = append(r.Skipped, name)
		case "deleted":
			r.Deleted += pg.Bigint(values[2])
		}
	}
	return err
}
