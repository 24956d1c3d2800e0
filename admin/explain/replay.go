package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Replay compares the recorded outcomes of requests with the outcomes under other limits of a rule.
//
// The limits decide with the algorithms of the proxies, at the time of each request. Only requests that the
// rule admitted or limited count. Requests that another limit refused do not count, because they were not
// charged, and neither do requests that were blocked or rejected, or had no decision.
//
// A replay differs from the requests with these limits in three ways:
//
//   - Its counters start empty. Until the longest window has passed, it refuses fewer requests.
//   - It assumes that all other limits would have admitted a request that the rule refused.
//   - Its token buckets keep their refill times. A store may delete the row of a full bucket, and the next
//     request then starts a new refill time.
type Replay struct {
	Rule  string    `json:"rule"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Limits describes the limits of the replay in prose.
	Limits string `json:"limits"`
	// FirstTime and LastTime are the times of the first and the last request.
	FirstTime time.Time `json:"first"`
	LastTime  time.Time `json:"last"`
	// Weight is the largest number of requests that a row of a sample represents, or 1 without a sample.
	Weight float64 `json:"weight"`
	// The following requests are not replayed. Shadow counts the requests that the rule, as a shadow rule,
	// would have refused. ByOthers counts the requests that other limits refused. WithoutCounter counts the
	// requests that a limit with the amount 0 refused, because such a limit has no counter.
	Shadow         int64 `json:"shadow,omitempty"`
	ByOthers       int64 `json:"limited_by_others,omitempty"`
	WithoutCounter int64 `json:"limited_without_counter,omitempty"`
	// Outcomes has two elements: the recorded outcomes, and the outcomes with the limits of the replay.
	Outcomes []Outcome `json:"outcomes"`
	// Changed has the counters with the largest changes in the number of refusals.
	Changed []Counter `json:"changed"`
}

// Outcome counts requests, and the counters and users with limited requests. A row of a sample counts as the
// number of requests that the row represents.
type Outcome struct {
	Label           string `json:"what"`
	Requests        int64  `json:"requests"`
	Admitted        int64  `json:"admitted"`
	Limited         int64  `json:"limited"`
	CountersLimited int64  `json:"counters_limited"`
	UsersLimited    int64  `json:"users_limited"`
}

// Counter compares the outcomes of one counter's requests.
type Counter struct {
	Key string `json:"key"`
	// User is the user of the last request, or nil if that request was anonymous.
	User     *string `json:"user_id"`
	Requests int64   `json:"requests"`
	// Limited counts the requests that the rule has refused, and WithTheseLimits those that the replay does.
	Limited         int64 `json:"limited"`
	WithTheseLimits int64 `json:"with_these_limits"`
}

// Limits holds the limits of a rule for a replay. The overrides that are in force now apply to the whole
// period, as they would after a change of the rule.
type Limits struct {
	// CostIsSet makes the cost of the rule replace the recorded costs of requests.
	CostIsSet bool

	rule         policy.Rule // without conditions, so that the rule matches every request
	description  string
	snapshot     *policy.Snapshot           // of the rule, with the overrides for tiers
	users        map[string]policy.Identity // users with overrides or billing periods, by name
	keyOverrides map[int64][]policy.Override
}

// limitsSQL reads the limits of a rule $1, the overrides in force, and the billing periods that limits may
// follow.
var limitsSQL = `SELECT json_build_object('Name', r.name, 'Action', r.action, 'count_by', r.count_by,
		'Cost', r.cost, 'Limits', ` + policy.LimitsSQL + `),
	(SELECT coalesce(json_agg(` + policy.OverrideSQL + ` - '{From,Until}'::text[]), '[]')
		FROM rate_limit_overrides o WHERE o.rule = r.name AND o.valid @> now()),
	(SELECT coalesce(json_object_agg(u.user_id, json_build_object('PeriodStart', u.period_start::text ||
		'T00:00:00Z', 'TimeZone', rate_limit_known_zone(u.time_zone))), '{}') FROM rate_limit_users u
		WHERE u.period_start IS NOT NULL AND EXISTS (SELECT FROM rate_limit_rule_limits l
			WHERE l.rule = r.name AND l.calendar IN ('month', 'year'))),
	coalesce(s.limits, '')
FROM rate_limit_rules r LEFT JOIN rate_limit_rule_states s USING (name) WHERE r.name = $1`

// ReadLimits reads the limits of a rule. The error is pgx.ErrNoRows if the rule does not exist, and a
// *ratelimit.FieldError if it has no limits, or limits that cannot be replayed.
func ReadLimits(ctx context.Context, conn *pgx.Conn, rule string) (*Limits, error) {
	l := &Limits{keyOverrides: map[int64][]policy.Override{}}
	var overrides, tiers []policy.Override
	err := conn.QueryRow(ctx, limitsSQL, rule).Scan(&l.rule, &overrides, &l.users, &l.description)
	if err != nil {
		return nil, err
	}
	want := ""
	switch {
	case l.rule.Action != policy.ActionLimit:
		want = "a rule with limits: its action is " + string(l.rule.Action)
	case len(l.rule.Limits) == 0:
		want = "a rule with at least one limit"
	case slices.ContainsFunc(l.rule.Limits, func(l policy.RuleLimit) bool {
		return l.Limit.Algorithm == ratelimit.InFlight
	}):
		want = "a rule without in_flight limits: the audit log does not have the times at which requests end"
	}
	if want != "" {
		return nil, &ratelimit.FieldError{Field: "rule", Value: rule, Want: want}
	}
	for _, o := range overrides {
		switch {
		case o.Tier != "":
			tiers = append(tiers, o)
		case o.KeyID != 0:
			l.keyOverrides[o.KeyID] = append(l.keyOverrides[o.KeyID], o)
		default:
			u := l.users[o.User]
			u.Overrides = append(u.Overrides, o)
			l.users[o.User] = u
		}
	}
	l.snapshot = policy.Compile([]policy.Rule{l.rule}, tiers, nil, 0)
	for _, wrong := range l.snapshot.Unusable() {
		if wrong.Override == "" {
			return nil, wrong.Err
		}
	}
	return l, nil
}

// recordedSQL reads the requests of a rule from $1 until $2, with the key of the rule's counter. Rows with
// equal times are in the order of writing.
const recordedSQL = `SELECT time, outcome = 'admitted', shadow, prefix = $3,
	coalesce(CASE WHEN prefix = $3 THEN key ELSE (SELECT also[i + 1]
		FROM generate_subscripts(also, 1) i WHERE i % 2 = 1 AND also[i] = $3 LIMIT 1) END, ''),
	coalesce(user_id, ''), coalesce(key_id, 0), coalesce(tier, ''), cost, count * weight, weight
FROM rate_limit_audit WHERE time >= $1::timestamptz AND time < $2::timestamptz
	AND outcome IN ('admitted', 'limited') AND (prefix = $3::text OR $3::text = ANY (also))
ORDER BY time, ctid`

// recordedRow is a row of recordedSQL.
type recordedRow struct {
	time     time.Time
	admitted bool // else limited
	shadow   bool
	byRule   bool   // the row has the rule's prefix, and so the rule's cost
	key      string // "" if the rule had no counter
	sender
	cost             int64
	requests, weight float64
}

// sender holds the facts that determine the amount of a limit.
type sender struct {
	user  string
	keyID int64
	tier  string
}

// Run replays the requests recorded for a rule against l, and reports at most maxCounters changed counters.
// The memory of Run grows with the number of counters and users, not with the number of requests.
func Run(
	ctx context.Context, conn *pgx.Conn, l *Limits, start, until time.Time, maxCounters int,
) (*Replay, error) {
	r := &replayer{
		Limits: l, counters: map[string]*counter{}, identities: map[sender]*policy.Identity{},
		users: [2]map[string]bool{{}, {}},
		replay: Replay{Rule: l.rule.Name, From: start.UTC(), Until: until.UTC(), Limits: l.description,
			Weight: 1, Changed: []Counter{}},
	}
	// Read each day by a statement of its own, so that the server never sorts more than one partition.
	for day := start.UTC(); day.Before(until); {
		end := day.Truncate(24 * time.Hour).Add(24 * time.Hour)
		if end.After(until) {
			end = until
		}
		result, _ := conn.Query(ctx, recordedSQL, day, end, option.RulePrefix+l.rule.Name)
		var row recordedRow
		columns := []any{&row.time, &row.admitted, &row.shadow, &row.byRule, &row.key, &row.user, &row.keyID,
			&row.tier, &row.cost, &row.requests, &row.weight}
		if _, err := pgx.ForEachRow(result, columns, func() error { r.add(&row); return nil }); err != nil {
			return nil, err
		}
		day = end
	}
	return &r.replay, r.conclude(maxCounters)
}

// replayer decides rows of the audit log in the order of time. The fields from verdict on are buffers that
// decide uses anew for each row.
type replayer struct {
	*Limits
	replay     Replay
	passed     bool // a recorded request passed
	counters   map[string]*counter
	users      [2]map[string]bool // the users with a limited request, in the log and in the replay
	identities map[sender]*policy.Identity

	verdict   policy.Verdict
	hits      []ratelimit.Hit
	rows      []*algorithm.Row
	times     []int64
	decisions []ratelimit.Decision
}

// counter is the state of one counter: the counts, and the row of each limit by name.
type counter struct {
	Counter
	rows      map[string]*algorithm.Row
	remainder float64 // for a sample, the fraction of a request that is not counted yet
}

// add replays the requests of a row and counts the results.
func (r *replayer) add(row *recordedRow) {
	r.replay.Weight = max(r.replay.Weight, row.weight)
	estimate := int64(row.requests + 0.5)
	switch {
	case row.shadow && row.byRule:
		r.replay.Shadow += estimate
		return
	case row.shadow:
		return
	case !row.admitted && row.byRule && row.key == "":
		r.replay.WithoutCounter += estimate
		return
	case !row.admitted && !row.byRule && row.key != "":
		r.replay.ByOthers += estimate
		return
	case row.key == "":
		return
	}
	if r.replay.FirstTime.IsZero() {
		r.replay.FirstTime = row.time.UTC()
	}
	r.replay.LastTime = row.time.UTC()
	c := r.counters[row.key]
	if c == nil {
		c = &counter{Counter: Counter{Key: row.key}, rows: map[string]*algorithm.Row{}}
		r.counters[row.key] = c
	}
	c.remainder += row.requests
	n := int64(c.remainder + 1e-9) // 1e-9 makes up for rounding: 100 times 0.01 must be 1
	c.remainder -= float64(n)
	wouldLimit, limited := n-r.decide(c, row, n), n
	if row.admitted {
		r.passed, limited = true, 0
	}
	c.User = nilIfZero(row.user)
	c.Requests += n
	c.Limited += limited
	c.WithTheseLimits += wouldLimit
	for i, n := range []int64{limited, wouldLimit} {
		if n > 0 && row.user != "" {
			r.users[i][row.user] = true
		}
	}
}

// decide decides n equal requests of a row and returns the number of admitted ones.
func (r *replayer) decide(c *counter, row *recordedRow, n int64) int64 {
	r.evaluateSender(row.sender)
	if r.verdict.Refused() {
		return 0 // the rule has a limit of 0
	}
	cost, now := r.rule.Cost, row.time.UnixMicro()
	if row.byRule && !r.CostIsSet && row.cost > 0 {
		cost = row.cost
	}
	r.hits, r.rows, r.times = r.hits[:0], r.rows[:0], r.times[:0]
	for i, terms := range r.verdict.Terms {
		if terms.Overage {
			continue // a limit with overage never refuses
		}
		hit := r.verdict.Hits[i]
		hit.Cost = cost
		r.hits = append(r.hits, hit)
		if c.rows[terms.Limit] == nil {
			c.rows[terms.Limit] = &algorithm.Row{}
		}
		r.rows = append(r.rows, c.rows[terms.Limit])
		r.times = append(r.times, now)
	}
	r.decisions = append(r.decisions[:0], make([]ratelimit.Decision, len(r.hits))...)
	for passed := range n {
		if !algorithm.Decide(r.hits, r.rows, r.times, r.decisions) {
			return passed // all later requests of the row have the same time, so they are refused as well
		}
		for i := range r.hits {
			if h := &r.hits[i]; h.Limit.Reserves { // each response comes before the next request
				algorithm.Settle(h.Limit, r.rows[i], now, h.Cost, 0, h.Cost)
			}
		}
	}
	return n
}

// evaluateSender sets r.verdict to the limits of a sender, with the amounts for the user, key and tier. The
// other facts are placeholders, so that a rule can count by them: the keys of the counters come from the
// audit log.
func (r *replayer) evaluateSender(s sender) {
	id := r.identities[s]
	if id == nil {
		identity := r.Limits.users[s.user]
		identity.Known, identity.User, identity.KeyID, identity.Tier = true, s.user, s.keyID, s.tier
		if s.keyID != 0 {
			identity.Digest = "any" // only the presence of a key matters
		}
		identity.Overrides = slices.Concat(r.keyOverrides[s.keyID], identity.Overrides)
		id = &identity
		r.identities[s] = id
	}
	facts := &policy.Facts{DefaultTier: s.tier, Address: AssumedAddress, Host: "any", Route: "any"}
	policy.EvaluateIdentity(r.snapshot, facts, id, time.Unix(0, 0), &r.verdict)
}

// conclude sums up counters and users, and selects the counters with the largest changes. If the audit log
// lacks the requests that a replay needs, conclude returns an error.
func (r *replayer) conclude(maxCounters int) error {
	replay, outcomes := &r.replay, []Outcome{{Label: "what happened"}, {Label: "with these limits"}}
	for _, c := range r.counters {
		for i, limited := range []int64{c.Limited, c.WithTheseLimits} {
			outcomes[i].Requests += c.Requests
			outcomes[i].Limited += limited
			outcomes[i].Admitted += c.Requests - limited
			outcomes[i].CountersLimited += min(1, limited)
		}
		if c.Limited != c.WithTheseLimits {
			replay.Changed = append(replay.Changed, c.Counter)
		}
	}
	for i, users := range r.users {
		outcomes[i].UsersLimited = int64(len(users))
	}
	replay.Outcomes = outcomes
	difference := func(c *Counter) int64 {
		return max(c.WithTheseLimits-c.Limited, c.Limited-c.WithTheseLimits)
	}
	slices.SortFunc(replay.Changed, func(a, b Counter) int {
		return cmp.Or(cmp.Compare(difference(&b), difference(&a)), strings.Compare(a.Key, b.Key))
	})
	replay.Changed = replay.Changed[:min(len(replay.Changed), maxCounters)]
	const layout = time.DateTime + "Z"
	from, until := replay.From.Format(layout), replay.Until.Format(layout)
	if outcomes[0].Requests == 0 && replay.Shadow == 0 {
		return fmt.Errorf("rule: %q: the audit log has no request that the rule has let pass or refused, "+
			"from %s until %s", replay.Rule, from, until)
	}
	if !r.passed {
		return fmt.Errorf("rule: %q: from %s until %s the audit log has only refusals, and a replay needs "+
			"the requests that passed: set `audit all` or `audit sample 10%%` where the rule applies, and "+
			"replay what is recorded from then on", replay.Rule, from, until)
	}
	return nil
}
