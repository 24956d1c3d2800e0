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
	l := d.log(ctx, &AuditQuery{Period: p})
	granularity := "minute"
	if p.isLong() {
		granularity = "hour"
	}
	top = list[Name](l.work, fmt.Sprintf(`SELECT $%d::text || reason, `+requestsSQL+`, `+requestsSQL+`, 0::bigint FROM rate_limit_audit
WHERE %s AND prefix = '' AND reason IS NOT NULL AND `+refusedSQL+` GROUP BY 1`, len(l.args)+1, &l.where), append(l.args, history.ReasonPrefix)...)
	for _, n := range list[Name](l.work, `SELECT prefix, sum(requests)::bigint, sum(limited + blocked + rejected)::bigint, sum(errors)::bigint FROM rate_limit_metrics
WHERE granularity = $1 AND time >= $2::timestamptz AND time < $3::timestamptz GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1`, granularity, p.From, p.Until) {
		sums.Requests += n.Requests
		sums.Refused += n.Refused
		sums.Failed += n.Failed
		if n.Refused > 0 && n.Name != "" {
			n.Name = l.names.shown(n.Name)
			top = append(top, n)
		}
	}
	slices.SortStableFunc(top, func(a, b Name) int { return cmp.Compare(b.Refused, a.Refused) })
	return top[:min(len(top), most)], sums, l.err
}
