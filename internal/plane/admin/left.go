package admin

import (
	"context"
	"sort"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
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
	store, err := postgres.New(keepOpen{db}, postgres.Options{DisableMigration: true, CleanupProbability: -1, MaxBlockedKeys: -1})
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

// stateColumns are a counter as an algorithm.Row has it, and the time of the server.
const stateColumns = `c.prefix, c.key, c.durable, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits, c.slots, c.expires_at, now()`

// stateRow is what stateColumns need of a table of counts.
var stateRow = `{durable} AS durable, c.prefix, c.key, coalesce(c.count, 0) AS count, coalesce(c.prev_count, 0) AS prev_count, c.window_start, c.tokens, c.last_refill,
	coalesce(c.remainder, 0) AS remainder, c.hits, ` + slotsSQL + ` AS slots, c.expires_at`

// slotsSQL is how many slots of a counter requests in flight hold.
var slotsSQL = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight}).SQL.Looked

// counterState has stateColumns.
type counterState struct {
	Prefix, Key      string
	Durable          bool
	Count, PrevCount int64
	Start            *time.Time
	Tokens           *float64
	Refill           *time.Time
	Remainder        int64
	Hits             []time.Time
	Slots            int64
	Expires, Now     time.Time
}

// microseconds is a time of the server; 0 is NULL.
func microseconds(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMicro()
}

// used is how much of a limit the counter has used, by the definition of the algorithm.
func (c *counterState) used(l *ratelimit.Limit) Usage {
	r := algorithm.Row{Count: max(c.Count, 0), PrevCount: max(c.PrevCount, 0), Start: microseconds(c.Start), Refill: microseconds(c.Refill), Remainder: c.Remainder, Slots: c.Slots, Expires: c.Expires.UnixMicro()}
	if c.Tokens != nil {
		r.Tokens, r.HasTokens = *c.Tokens, true
	}
	for _, hit := range c.Hits {
		r.Hits = append(r.Hits, hit.UnixMicro())
	}
	free, reset := algorithm.Of(l).Look(l, &r, c.Now.UnixMicro())
	quota := l.Capacity()
	u := Usage{Prefix: l.Prefix, Key: c.Key, Algorithm: l.Algorithm.String(), Used: max(quota-free, 0), Quota: &quota}
	percent := 100 * float64(u.Used) / float64(max(quota, 1))
	u.Percent = &percent
	if at := time.UnixMicro(reset).UTC(); at.After(c.Now) && l.Algorithm != ratelimit.InFlight { // nobody knows when requests end
		u.Resets = &at
	}
	return u
}

// NearLimits returns the counters of limits of configurations of which at least a share, in percent, is used, the
// highest share first. It looks at the counters of each prefix that have counted most, at most so many.
func (d *Database) NearLimits(ctx context.Context, limits []*ratelimit.Limit, percent float64, most int) ([]Usage, error) {
	w := d.work(ctx)
	all := w.states(limits, `SELECT c.* FROM (SELECT DISTINCT unnest($1::text[]) AS prefix) AS p
CROSS JOIN LATERAL (SELECT `+stateRow+` FROM {table} AS c WHERE c.prefix = p.prefix AND c.expires_at > now() `+mostFirst+` LIMIT $2::bigint) AS c`, "", int64(most))
	near := []Usage{}
	for _, u := range all {
		if *u.Percent >= percent {
			near = append(near, u)
		}
	}
	sort.SliceStable(near, func(i, j int) bool { return *near[i].Percent > *near[j].Percent })
	return near, w.err
}

// UsedOf returns how much is used of limits of configurations for a key, as it is given or as it is stored.
func (d *Database) UsedOf(ctx context.Context, limits []*ratelimit.Limit, key string) ([]Usage, error) {
	w := d.work(ctx)
	used := w.states(limits, `SELECT `+stateRow+` FROM {table} AS c WHERE c.prefix = ANY ($1::text[])
	AND c.key = ANY (ARRAY(SELECT number || own.key FROM `+alternatives+`, unnest($2::text[]) AS own(key)))`, " ORDER BY c.prefix, c.key", storedKeys(key))
	return used, w.err
}

// InFlight returns how many requests are in flight by the prefix of a limit that counts them, all keys together.
func (d *Database) InFlight(ctx context.Context, prefixes []string) (map[string]int64, error) {
	running := map[string]int64{}
	if len(prefixes) == 0 {
		return running, nil
	}
	w := d.work(ctx)
	_, counts := w.counters("SELECT c.prefix, " + slotsSQL + " AS slots FROM {table} AS c WHERE c.prefix = ANY ($1::text[])")
	for _, f := range list[struct {
		Prefix string
		Slots  int64
	}](w, "SELECT c.prefix, sum(c.slots)::bigint FROM "+counts+" GROUP BY c.prefix", prefixes) {
		running[f.Prefix] = f.Slots
	}
	return running, w.err
}

// states returns the counters that a query finds for the prefixes of limits, in an order, as these limits see them.
func (w *work) states(limits []*ratelimit.Limit, query, order string, arg any) []Usage {
	used := []Usage{}
	if len(limits) == 0 {
		return used
	}
	prefixes := make([]string, len(limits))
	for i, l := range limits {
		prefixes[i] = l.Prefix
	}
	_, counts := w.counters(query)
	for _, c := range list[counterState](w, "SELECT "+stateColumns+" FROM "+counts+order, prefixes, arg) {
		for _, l := range limits {
			if l.Prefix == c.Prefix && l.Durable == c.Durable {
				if u := c.used(l); u.Used > 0 {
					used = append(used, u)
				}
			}
		}
	}
	return used
}
