package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Replay is what other limits of a rule would have done to the requests in the audit log, beside
// what happened to them.
//
// The limits decide with the steps of the proxies, at the time of each request. A request counts
// if the rule let it pass or refused it. One that another limit has refused does not count, since
// nothing was charged. Nor does one that was blocked or rejected, or had no decision. A request
// that the rule has refused is taken for one that all other limits would let pass. A token bucket
// keeps its times of refill, while a store may delete the row of a full one, which begins anew.
type Replay struct {
	Rule  string    `json:"rule"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Limits are those of the replay.
	Limits []Row `json:"limits"`
	// WarmUntil is when the longest window of the limits has passed. The counters begin empty,
	// so that until then they lack what was counted before From.
	WarmUntil time.Time `json:"warm_until"`
	// First and Last are the times of the first and the last request.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`

	// Requests that count. A sample is counted as what it stands for.
	Requests int64 `json:"requests"`
	// Happened is what happened to them, and Replayed what would have happened.
	Happened ReplayCounts `json:"happened"`
	Replayed ReplayCounts `json:"replayed"`
	// Shadow is how many requests the rule would have refused while it was a shadow rule.
	Shadow int64 `json:"shadow"`

	// ByOthers are requests that other limits have refused. Unknown are requests that the rule
	// has refused without a counter, since its limit was 0. Neither are among Requests.
	ByOthers int64 `json:"refused_by_others"`
	Unknown  int64 `json:"without_counter"`
	// Weight is the most requests that one row of a sample stands for; 1 without a sample.
	Weight float64 `json:"weight"`

	// Changed are the counters whose number of refusals changes the most, up to
	// ReplayQuery.Most of them.
	Changed []ReplayedCounter `json:"changed"`
}

// ReplayCounts counts requests, and the counters and users with a request that was refused.
type ReplayCounts struct {
	Passed   int64 `json:"passed"`
	Refused  int64 `json:"refused"`
	Counters int64 `json:"counters_refused"`
	Users    int64 `json:"users_refused"`
}

// ReplayedCounter is what happened to the requests of one counter.
type ReplayedCounter struct {
	Key string `json:"key"`
	// User is that of the last request; nil for nobody.
	User     *string `json:"user"`
	Requests int64   `json:"requests"`
	// Refused is how many were refused, and Replayed how many would have been.
	Refused  int64 `json:"refused"`
	Replayed int64 `json:"replayed_refused"`
}

// ReplayQuery says what to replay.
type ReplayQuery struct {
	Period
	Rule string
	// Settings change the limits that the rule has now, for the replay. They have the form that
	// SetRule takes.
	Settings []string
	// Most bounds Replay.Changed.
	Most int
}

// replaySQL reads the rows of a rule on a day or a part of it. Rows of the same time are in the
// order in which they were written.
const replaySQL = `SELECT time, decision, prefix, coalesce(key, ''), coalesce(user_id, ''), coalesce(key_id, 0), coalesce(tier, ''), cost, count, weight, also
FROM rate_limit_audit WHERE time >= $1::timestamptz AND time < $2::timestamptz AND (prefix = $3::text OR $3::text = ANY (also))
ORDER BY time, ctid`

// replayRow is a row of replaySQL.
type replayRow struct {
	time             time.Time
	decision, prefix string
	key, user        string
	keyID            int64
	tier             string
	cost, count      int64
	weight           float64
	also             []string
}

// Replay decides the recorded requests of a rule again, with other limits. It changes nothing in
// the database. The memory grows with the number of counters and of users, not with that of the requests.
func (d *Database) Replay(ctx context.Context, q *ReplayQuery) (*Replay, error) {
	limits, err := d.replayLimits(ctx, q)
	if err != nil {
		return nil, err
	}
	t, err := d.replay(ctx, q, limits)
	if err != nil {
		return nil, err
	}
	return &t.replay, t.check(q)
}

// replay decides the recorded requests of a rule with limits.
func (d *Database) replay(ctx context.Context, q *ReplayQuery, limits *replayLimits) (*trial, error) {
	prefix := rulePrefix + q.Rule
	t := newTrial(limits)
	// Each day is a statement of its own, so that the server never sorts more than a partition.
	for from := q.From.UTC(); from.Before(q.Until); {
		until := from.Truncate(24 * time.Hour).Add(24 * time.Hour)
		if until.After(q.Until) {
			until = q.Until
		}
		if err := d.replayDay(ctx, t, prefix, Period{from, until}); err != nil {
			return nil, err
		}
		from = until
	}
	r := &t.replay
	r.Rule, r.From, r.Until, r.Limits = q.Rule, q.From, q.Until, limits.listed
	r.WarmUntil = limits.warmUntil
	t.conclude(q.Most)
	return t, nil
}

func (d *Database) replayDay(ctx context.Context, t *trial, prefix string, p Period) error {
	result, err := d.conn.Query(ctx, replaySQL, p.From, p.Until, prefix)
	if err != nil {
		return d.failure(err)
	}
	var row replayRow
	_, err = pgx.ForEachRow(result, []any{
		&row.time, &row.decision, &row.prefix, &row.key, &row.user, &row.keyID, &row.tier, &row.cost, &row.count, &row.weight, &row.also,
	}, func() error {
		t.add(&row, prefix)
		return nil
	})
	if err != nil {
		return d.failure(err)
	}
	return nil
}

// check returns an error if the audit log does not have what a replay needs.
func (t *trial) check(q *ReplayQuery) error {
	from, until := utc(q.From), utc(q.Until)
	r := &t.replay
	if r.Requests == 0 && r.Shadow == 0 {
		return notFound(fmt.Sprintf("rule: %q: the audit log has no request that the rule has let pass or refused, from %s until %s", q.Rule, from, until))
	}
	if !t.passed {
		return fmt.Errorf("rule: %q: from %s until %s the audit log has only refusals, and a replay needs the requests that passed: "+
			"set `audit all` or `audit sample 10%%` where the rule applies, and replay what is recorded from then on", q.Rule, from, until)
	}
	return nil
}

// conclude adds the counters and the users up, and finds the counters that change the most.
func (t *trial) conclude(most int) {
	r := &t.replay
	r.Changed = []ReplayedCounter{}
	for _, c := range t.counters {
		r.Requests += c.Requests
		r.Happened.Refused += c.Refused
		r.Replayed.Refused += c.Replayed
		r.Happened.Counters += min(1, c.Refused)
		r.Replayed.Counters += min(1, c.Replayed)
		if c.Refused != c.Replayed {
			r.Changed = append(r.Changed, c.ReplayedCounter)
		}
	}
	r.Happened.Passed, r.Replayed.Passed = r.Requests-r.Happened.Refused, r.Requests-r.Replayed.Refused
	for _, u := range t.users {
		r.Happened.Users += min(1, u.refused)
		r.Replayed.Users += min(1, u.replayed)
	}
	slices.SortFunc(r.Changed, func(a, b ReplayedCounter) int {
		return cmp.Or(cmp.Compare(b.difference(), a.difference()), strings.Compare(a.Key, b.Key))
	})
	r.Changed = r.Changed[:min(len(r.Changed), most)]
}

// difference is by how much the number of refusals changes.
func (c *ReplayedCounter) difference() int64 { return max(c.Replayed-c.Refused, c.Refused-c.Replayed) }
