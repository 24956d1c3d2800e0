package archive

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// part is a part of the history with files of its own.
type part struct {
	table     string
	folder    string // of the files
	time      string // the column that says to which day a row belongs
	retention string // its name in rate_limit_retention
	where     string // which rows are archived; "": all
	// state is an aggregate over the rows of a day that changes if one of them is changed; "": rows
	// are only ever added.
	state string
}

// audit is the audit log. Its days are tables.
var audit = part{table: "rate_limit_audit", folder: "audit", time: "time", retention: "audit"}

// sums are the parts whose rows are added up. Days of the metrics are sums of hours, so the hours are
// enough.
var sums = []part{
	{"rate_limit_metrics", "metrics", "time", "metrics_hour", "granularity = 'hour'", "max(updated_at)"},
	{"rate_limit_usage", "usage", "day", "usage", "", "sum(requests)"},
	{"rate_limit_usage_hours", "usage_hours", "hour", "metrics_hour", "", "sum(requests)"},
}

// parts are all of them.
var parts = append([]part{audit}, sums...)

// settled is how long after a day a proxy may still write to its sums, because it could not reach the
// database before. Then its file is not compared any more.
const settled = 30 * dayLength

// sumsOf returns the days of a part that may have to be archived, the oldest first. Days that upkeep may
// be deleting are not among them: a file must not lose rows that were deleted.
func sumsOf(ctx context.Context, conn *pgx.Conn, p part, o Options) ([]partition, error) {
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", p.table).Scan(&there); err != nil || !there {
		return nil, err
	}
	names, err := o.To.list(ctx, p.folder+"/")
	if err != nil {
		return nil, fmt.Errorf("listing the files of %s: %w", p.folder, err)
	}
	archived := map[string]bool{}
	for _, name := range names {
		archived[name] = true
	}
	where := p.time + " >= d AND " + p.time + " < d + interval '1 day'"
	if p.where != "" {
		where += " AND " + p.where
	}
	// Each day is one look at an index or a partition.
	rows, err := conn.Query(ctx, `SELECT d AT TIME ZONE 'UTC' FROM generate_series(
	(date_trunc('day', greatest($1::timestamptz - (SELECT keep FROM rate_limit_retention WHERE what = $3), $1::timestamptz - interval '110 years', $4::timestamptz)) + interval '1 day'),
	date_trunc('day', $2::timestamptz) - interval '1 day', '1 day') AS d
CROSS JOIN LATERAL (SELECT FROM `+p.table+` WHERE `+where+` LIMIT 1) AS one`, o.Now, o.Before, p.retention, o.Expire)
	if err != nil {
		return nil, err
	}
	days, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	var all []partition
	for _, day := range days {
		if archived[fileOf(p.folder, day, 1)] && day.Add(dayLength+settled).Before(o.Before) {
			continue
		}
		from := fmt.Sprintf("%s WHERE %s >= '%s' AND %s < '%s'", p.table, p.time, day.Format(time.RFC3339), p.time, day.Add(dayLength).Format(time.RFC3339))
		if p.where != "" {
			from += " AND " + p.where
		}
		all = append(all, partition{part: p, name: p.table, table: p.table, from: from, day: day})
	}
	return all, err
}
