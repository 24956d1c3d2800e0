package admin

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// ExplainedLimit is a limit that a request is charged to.
type ExplainedLimit struct {
	Rule  string `json:"rule"`
	Limit string `json:"limit"`
	// Key is what is counted, as in the counters.
	Key       string `json:"key"`
	Algorithm string `json:"algorithm"`
	// Seconds is the window; nil for one on the calendar, and for in_flight.
	Seconds  *float64 `json:"seconds"`
	Calendar *string  `json:"calendar"`
	// Quota is the amount, and nil for unlimited. AmountFrom is where it comes from: rule,
	// tier, user or key.
	Quota      *int64 `json:"quota"`
	AmountFrom string `json:"amount_from"`
	Cost       int64  `json:"cost"`
	// Settle says what a request really costs; "" is Cost.
	Settle string `json:"settle"`
	// Left is what is left of the quota now. Below 0, it is how much was used beyond the quota.
	// It is nil for unlimited.
	Left *int64 `json:"left"`
	// Reset is ratelimit.Decision.Reset; nil for unlimited, and if the request can never pass. RetryAfter is in
	// seconds, and nil if the request would pass now, or never.
	Reset      *time.Time `json:"reset"`
	RetryAfter *float64   `json:"retry_after"`
	Passes     bool       `json:"passes"`
	Shadow     bool       `json:"shadow"`
	Overage    bool       `json:"overage"`
	Status     int        `json:"status"`
}

// refuses reports whether the limit would refuse the request.
func (l *ExplainedLimit) refuses() bool { return !l.Passes && !l.Shadow && !l.Overage }

// leftTimeout is for the decisions of a store that nobody else uses.
const leftTimeout = 10 * time.Second

// explainLimits asks a store what is left of the limits of a verdict, and charges nothing. db is a connection
// to d.
func (d *Database) explainLimits(ctx context.Context, db *pgxdb.DB, o *policy.Verdict) ([]ExplainedLimit, error) {
	limits := []ExplainedLimit{}
	if len(o.Hits) == 0 {
		return limits, nil
	}
	if d.counters != "" {
		counters, err := pgxdb.Open(d.counters, pgxdb.Options{MaxConns: 1})
		if err != nil {
			return nil, err
		}
		defer counters.Close()
		db = counters
	}
	store, err := postgres.New(keepOpen{db}, postgres.Options{DisableMigration: true, CleanupProbability: -1, DisableInMemoryBlock: true})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	hits := append([]ratelimit.Hit(nil), o.Hits...)
	for i := range hits {
		hits[i].Peek = true
	}
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(ctx, leftTimeout, hits, decisions); err != nil {
		return nil, err
	}
	for i := range hits {
		limits = append(limits, explainLimit(&hits[i], o.Marks[i], &decisions[i]))
	}
	return limits, nil
}

func explainLimit(hit *ratelimit.Hit, mark *policy.Mark, decision *ratelimit.Decision) ExplainedLimit {
	l := limitOf(hit, mark)
	left := decision.Remaining
	if mark.Overage {
		// The store counts up to a larger quota.
		left = mark.Quota - (decision.Limit - decision.Remaining)
	}
	l.Quota, l.Left, l.Passes = &mark.Quota, &left, decision.Allowed
	if reset := decision.Reset.UTC(); !reset.IsZero() {
		l.Reset = &reset
	}
	if decision.RetryAfter > 0 && decision.RetryAfter != ratelimit.Never {
		seconds := decision.RetryAfter.Seconds()
		l.RetryAfter = &seconds
	}
	return l
}

// calendarNames are the units in rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"", "day", "week", "month", "year"}

// limitOf is a limit without its amount and without what is left of it.
func limitOf(hit *ratelimit.Hit, mark *policy.Mark) ExplainedLimit {
	l := ExplainedLimit{
		Rule: mark.Rule, Limit: mark.Limit, Key: hit.StoredKey(), Algorithm: hit.Limit.Algorithm.String(),
		AmountFrom: mark.From, Cost: hit.Cost, Shadow: mark.Shadow, Overage: mark.Overage, Status: mark.Status,
	}
	if mark.Settle != nil {
		l.Settle = mark.Settle.Text
	}
	if hit.Limit.Window > 0 {
		seconds := hit.Limit.Window.Seconds()
		l.Seconds = &seconds
	} else {
		l.Calendar = &calendarNames[hit.Limit.Calendar]
	}
	return l
}

// keepOpen is a connection that the store does not close.
type keepOpen struct{ *pgxdb.DB }

func (keepOpen) Close() {}
