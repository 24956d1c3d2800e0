package admin

import (
	"context"
	"fmt"
	"time"
)

// Decided returns how many requests a query finds, by their decisions. A sample is counted as what it stands for.
func (d *Database) Decided(ctx context.Context, q *AuditQuery) (map[string]int64, error) {
	names, err := d.renamedRules(ctx)
	if err != nil {
		return nil, err
	}
	w := q.where(names)
	found, err := rows[struct {
		Decision string
		Requests int64
	}](ctx, d, fmt.Sprintf("SELECT decision, round(sum(count * weight))::bigint FROM rate_limit_audit WHERE %s GROUP BY 1", w), w.args...)
	decided := map[string]int64{}
	for _, f := range found {
		decided[f.Decision] = f.Requests
	}
	return decided, err
}

// NearestRefusal returns when the request of a query was refused that is nearest to a time; nil: none was.
func (d *Database) NearestRefusal(ctx context.Context, q *AuditQuery, at time.Time) (*time.Time, error) {
	names, err := d.renamedRules(ctx)
	if err != nil {
		return nil, err
	}
	w := q.where(names)
	w.args = append(w.args, at)
	return value[time.Time](ctx, d, fmt.Sprintf(`SELECT time FROM (
	(SELECT time FROM rate_limit_audit WHERE %[1]s AND `+refusedSQL+` AND time < $%[2]d::timestamptz ORDER BY time DESC LIMIT 1)
	UNION ALL (SELECT time FROM rate_limit_audit WHERE %[1]s AND `+refusedSQL+` AND time >= $%[2]d::timestamptz ORDER BY time LIMIT 1)) AS beside
ORDER BY greatest(time - $%[2]d::timestamptz, $%[2]d::timestamptz - time) LIMIT 1`, w, len(w.args)), w.args...)
}
