package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// Minute is what happened in a minute.
type Minute struct {
	Time    time.Time `json:"time"`
	Allowed int64     `json:"allowed"`
	// Refused are the requests that a limit, a ban, a rule, or the check of the API key refused.
	Refused int64 `json:"refused"`
	// Failed are the requests without a decision.
	Failed int64 `json:"failed"`
	// Shadow are the refusals that shadow rules would have made.
	Shadow int64 `json:"shadow"`
}

// Traffic returns the minutes of a period in which requests came, by the metrics, in their order.
func (d *Database) Traffic(ctx context.Context, p Period) ([]Minute, error) {
	return rows[Minute](ctx, d, `SELECT time, sum(allowed)::bigint, sum(limited + blocked + rejected)::bigint, sum(errors)::bigint, sum(shadow)::bigint
FROM rate_limit_metrics WHERE granularity = 'minute' AND time >= $1::timestamptz AND time < $2::timestamptz GROUP BY 1 ORDER BY 1`, p.From, p.Until)
}

// Name is what the requests of one sender or of one limit were. A sample is counted as what it stands for.
type Name struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Refused  int64  `json:"refused"`
	Failed   int64  `json:"failed"`
}

// longPeriod is how long a period is at most for which the metrics of minutes are read.
const longPeriod = 25 * time.Hour

// Full returns the period from its first full minute on, or its first full hour if it is long: the metrics do not say
// what came before a point within one.
func (p Period) Full() Period {
	step := time.Minute
	if p.isLong() {
		step = time.Hour
	}
	p.From = p.From.Add(step - 1).Truncate(step)
	return p
}

func (p Period) isLong() bool { return p.Until.Sub(p.From) > longPeriod }

// TopRules returns the limits, of rules and of configurations, with the most refusals in a period that is Full, at most so
// many, by the metrics. Requests that no limit refused are under history.ReasonPrefix and their reason, by the audit log.
// It also returns the sums of all requests.
func (d *Database) TopRules(ctx context.Context, p Period, most int) (top []Name, sums Name, err error) {
	names, err := d.renamedRules(ctx)
	if err != nil {
		return nil, sums, err
	}
	granularity := "minute"
	if p.isLong() {
		granularity = "hour"
	}
	all, err := rows[Name](ctx, d, `SELECT prefix, sum(requests)::bigint, sum(limited + blocked + rejected)::bigint, sum(errors)::bigint FROM rate_limit_metrics
WHERE granularity = $1 AND time >= $2::timestamptz AND time < $3::timestamptz GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1`, granularity, p.From, p.Until)
	if err != nil {
		return nil, sums, err
	}
	reasons, err := rows[Name](ctx, d, `SELECT $3::text || reason, round(sum(count * weight))::bigint, round(sum(count * weight))::bigint, 0::bigint FROM rate_limit_audit
WHERE time >= $1::timestamptz AND time < $2::timestamptz AND prefix = '' AND reason IS NOT NULL AND `+refusedSQL+` GROUP BY 1`, p.From, p.Until, history.ReasonPrefix)
	top = reasons
	for _, n := range all {
		sums.Requests += n.Requests
		sums.Refused += n.Refused
		sums.Failed += n.Failed
		if n.Refused > 0 && n.Name != "" {
			n.Name = names.shown(n.Name)
			top = append(top, n)
		}
	}
	slices.SortStableFunc(top, func(a, b Name) int { return cmp.Compare(b.Refused, a.Refused) })
	return top[:min(len(top), most)], sums, err
}

// TopUsers and TopAddresses return the users and the addresses with the most refusals in a period, by the
// audit log, at most so many.
func (d *Database) TopUsers(ctx context.Context, p Period, most int) ([]Name, error) {
	return d.topNames(ctx, "user_id", p, most)
}

// TopAddresses is TopUsers for addresses.
func (d *Database) TopAddresses(ctx context.Context, p Period, most int) ([]Name, error) {
	return d.topNames(ctx, "abbrev(address)", p, most)
}

func (d *Database) topNames(ctx context.Context, column string, p Period, most int) ([]Name, error) {
	var w where
	w.period(p)
	w.args = append(w.args, int64(most))
	return rows[Name](ctx, d, fmt.Sprintf(`SELECT %[1]s, round(sum(count * weight))::bigint, round(sum(count * weight) FILTER (WHERE `+refusedSQL+`))::bigint,
	coalesce(sum(count) FILTER (WHERE decision = 'error'), 0)::bigint
FROM rate_limit_audit WHERE %[2]s AND decision <> 'shadow' AND %[1]s IS NOT NULL GROUP BY 1 HAVING bool_or(`+refusedSQL+`) ORDER BY 3 DESC, 2 DESC, 1 LIMIT $%[3]d::bigint`,
		column, &w, len(w.args)), w.args...)
}

// TopPaths returns the paths with the most requests in a period, with their hosts, by the audit log, at most so many. prefix is as in
// AuditQuery; "" is all.
func (d *Database) TopPaths(ctx context.Context, p Period, prefix string, most int) ([]Name, error) {
	names, err := d.renamedRules(ctx)
	if err != nil {
		return nil, err
	}
	var w where
	w.period(p)
	w.prefix(names.stored(prefix))
	w.args = append(w.args, int64(most))
	return rows[Name](ctx, d, fmt.Sprintf(`SELECT coalesce(host, '') || path, round(sum(count * weight))::bigint, round(coalesce(sum(count * weight) FILTER (WHERE `+refusedSQL+`), 0))::bigint,
	coalesce(sum(count) FILTER (WHERE decision = 'error'), 0)::bigint
FROM rate_limit_audit WHERE %s AND decision <> 'shadow' AND path IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 3 DESC, 1 LIMIT $%d::bigint`, &w, len(w.args)), w.args...)
}
