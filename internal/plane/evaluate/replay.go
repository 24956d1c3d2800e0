package evaluate

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Replay compares what happened to the requests in the audit log with what other limits of a rule would have
// done to them.
//
// The limits decide with the steps of the proxies, at the time of each request. A request counts if the rule
// let it pass or refused it. A request that another limit refused does not count, because it was not charged.
// Nor does a request that was blocked or rejected, or had no decision.
//
// Replay assumes that the other limits would have allowed a request that the rule refused. Its token buckets
// keep their refill times; a store may delete a full bucket, which then starts afresh.
type Replay struct {
	Rule  string    `json:"rule"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Limits describes the limits of the replay in words.
	Limits string `json:"limits"`
	// WarmUntil is the end of the longest window that begins at From. The counters begin empty, so the replay
	// refuses fewer requests before WarmUntil than the limits would have.
	WarmUntil time.Time `json:"warm_until"`
	// First and Last are the times of the first and the last request.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Weight is the largest number of requests that one row of a sample represents. It is 1 without a sample.
	Weight float64 `json:"weight"`
	// Shadow counts the requests that the rule would have refused if it were not a shadow rule. ByOthers
	// counts the omitted requests that other limits refused. WithoutCounter counts those that a limit of 0
	// refused, which has no counter.
	Shadow         int64 `json:"shadow,omitempty"`
	ByOthers       int64 `json:"refused_by_others,omitempty"`
	WithoutCounter int64 `json:"refused_without_counter,omitempty"`
	// Outcomes has two elements: what happened, and what would have happened.
	Outcomes []Outcome `json:"outcomes"`
	// Changed has the counters with the largest changes in the number of refusals.
	Changed []Counter `json:"changed"`
}

// Outcome counts requests, and the counters and users with a refused request. A row of a sample counts as the
// requests that it represents.
type Outcome struct {
	What            string `json:"what"`
	Requests        int64  `json:"requests"`
	Passed          int64  `json:"passed"`
	Refused         int64  `json:"refused"`
	CountersRefused int64  `json:"counters_refused"`
	UsersRefused    int64  `json:"users_refused"`
}

// Counter compares what happened to the requests of one counter.
type Counter struct {
	Key string `json:"key"`
	// User is the user of the last request. It is nil for an anonymous request.
	User     *string `json:"user_id"`
	Requests int64   `json:"requests"`
	// Refused counts the requests that were refused, and WithTheseLimits those that the replay refuses.
	Refused         int64 `json:"refused"`
	WithTheseLimits int64 `json:"with_these_limits"`
}

// Limits holds the limits of a rule for a replay. The overrides that are in force now hold for the whole
// period, as they would after a change of the rule.
type Limits struct {
	Rule string
	// CostIsSet replaces the recorded costs of requests by the cost of the rule.
	CostIsSet bool

	description string
	cost        int64
	maxWindow   time.Duration // the longest time for which a limit counts a request

	// snapshot has one rule with these limits, which matches every request.
	snapshot     *policy.Snapshot
	users        map[string]policy.Identity // the users with overrides or billing periods
	keyOverrides map[int64][]policy.Override
}

// limitsSQL reads the limits of a rule $1, the overrides in force, the billing periods that limits may
// follow, and the longest time in seconds for which a limit counts a request. The refill of a burst can take
// longer than a window.
var limitsSQL = "SELECT r.action, r.count_by, r.cost, coalesce(" + policy.LimitsSQL + `, '[]'),
	(SELECT coalesce(json_agg(` + policy.OverrideSQL + `), '[]') FROM rate_limit_overrides o
		WHERE o.rule = r.name AND o.valid @> now()),
	(SELECT coalesce(json_object_agg(u.user_id, json_build_object('PeriodStart', u.period_start::text ||
		'T00:00:00Z', 'TimeZone', u.time_zone)), '{}') FROM rate_limit_users u WHERE u.period_start IS NOT
			NULL
		AND EXISTS (SELECT FROM rate_limit_rule_limits l WHERE l.rule = r.name AND l.calendar IN ('month',
			'year'))),
	(SELECT coalesce(max(CASE l.calendar WHEN 'day' THEN 1 WHEN 'week' THEN 7 WHEN 'month' THEN 31 WHEN 'year'
		THEN 366 ELSE least(extract(epoch FROM l.per) / 86400 *
			greatest(1, coalesce(l.burst::float8 / nullif(l.events, 0), 1)), 36525) END), 0) * 86400
		FROM rate_limit_rule_limits l WHERE l.rule = r.name AND l.on_exceed = 'refuse')::float8,
	(SELECT coalesce(s.limits, '') FROM rate_limit_rule_states s WHERE s.name = r.name)
FROM rate_limit_rules r WHERE r.name = $1`

// ReadLimits reads the limits of a rule. It returns nil if the rule does not exist. The error is a
// *ratelimit.FieldError if the rule has no limits, or limits that cannot be replayed.
func ReadLimits(ctx context.Context, conn *pgx.Conn, rule string) (*Limits, error) {
	result, err := conn.Query(ctx, limitsSQL, rule)
	if err != nil {
		return nil, err
	}
	r, err := pgx.CollectRows(result, pgx.RowToStructByPos[struct {
		Action    string
		CountBy   []string
		Cost      int64
		Limits    []policy.RuleLimit
		Overrides []policy.Override
		Users     map[string]policy.Identity
		Longest   float64
		Words     string
	}])
	if err != nil || len(r) == 0 {
		return nil, err
	}
	found := &r[0]
	wrong := func(want string) error { return &ratelimit.FieldError{Field: "rule", Value: rule, Want: want} }
	if found.Action != string(policy.Charge) {
		return nil, wrong("a rule with limits: its action is " + found.Action)
	}
	if len(found.Limits) == 0 {
		return nil, wrong("left with a limit")
	}
	l := &Limits{
		Rule: rule, description: found.Words, cost: found.Cost,
		maxWindow: time.Duration(found.Longest * float64(time.Second)), users: found.Users,
		keyOverrides: map[int64][]policy.Override{},
	}
	for i := range found.Limits {
		if found.Limits[i].Limit.Algorithm == ratelimit.InFlight {
			return nil, wrong("without a limit of requests in flight: the audit log does not have when " +
				"requests ended")
		}
	}
	var tiers []policy.Override
	for _, o := range found.Overrides {
		o.From, o.Until = time.Time{}, time.Time{}
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
	// The keys of counters come from the audit log. count_by matters here only for billing periods: it
	// determines whether they belong to users.
	replayed := policy.Rule{Name: rule, CountBy: []string{"all"}, Cost: l.cost, Limits: found.Limits}
	if slices.ContainsFunc(found.CountBy, func(by string) bool {
		return by == "key" || by == "user" || strings.HasPrefix(by, "user|") || strings.HasPrefix(by,
			"key|user")
	}) {
		replayed.CountBy = []string{"user"}
	}
	l.snapshot = policy.Compile([]policy.Rule{replayed}, tiers, nil, 0)
	for _, wrong := range l.snapshot.Wrong() {
		if wrong.Override == "" {
			return nil, wrong.Err
		}
	}
	return l, nil
}

// recordedSQL reads the requests of a rule from $1 until $2, with the key of the rule's counter. Rows of the
// same time are in the order in which they were written.
const recordedSQL = `SELECT time, outcome, prefix = $3, coalesce(CASE WHEN prefix = $3 THEN key
	ELSE (SELECT also[i + 1] FROM generate_subscripts(also, 1) i WHERE i % 2 = 1 AND also[i] = $3 LIMIT 1)
	END, ''), coalesce(user_id, ''), coalesce(key_id, 0), coalesce(tier, ''), cost, count * weight, weight
FROM rate_limit_audit WHERE time >= $1::timestamptz AND time < $2::timestamptz
	AND outcome IN ('allowed', 'limited', 'shadow') AND (prefix = $3::text OR $3::text = ANY (also))
ORDER BY time, ctid`

// recorded is a row of recordedSQL.
type recorded struct {
	time    time.Time
	outcome string
	byRule  bool   // the row was recorded under the rule, and so has its cost
	key     string // "" if the rule had no counter
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
// Memory grows with counters and users, not with requests.
func Run(
	ctx context.Context, conn *pgx.Conn, l *Limits, from, until time.Time, maxCounters int,
) (*Replay, error) {
	t := &replayer{
		Limits: l, counters: map[string]*counter{}, identities: map[sender]*policy.Identity{},
		users: [2]map[string]bool{{}, {}},
		replay: Replay{Rule: l.Rule, From: from.UTC(), Until: until.UTC(), Limits: l.description,
			WarmUntil: from.Add(l.maxWindow).UTC(), Weight: 1, Changed: []Counter{}},
	}
	// Each day has a statement of its own, so that the server never sorts more than a partition.
	for day := from.UTC(); day.Before(until); {
		end := day.Truncate(24 * time.Hour).Add(24 * time.Hour)
		if end.After(until) {
			end = until
		}
		result, err := conn.Query(ctx, recordedSQL, day, end, "rule/"+l.Rule)
		if err != nil {
			return nil, err
		}
		var r recorded
		if _, err := pgx.ForEachRow(result, []any{
			&r.time, &r.outcome, &r.byRule, &r.key, &r.user, &r.keyID, &r.tier, &r.cost, &r.requests,
			&r.weight}, func() error { t.add(&r); return nil }); err != nil {
			return nil, err
		}
		day = end
	}
	return &t.replay, t.conclude(maxCounters)
}

// replayer decides the rows of the audit log one after the other, in the order of time. It reuses verdict,
// hits, rows, times and decisions for each row.
type replayer struct {
	*Limits
	replay     Replay
	passed     bool // a recorded request passed
	counters   map[string]*counter
	users      [2]map[string]bool // those with a refused request: in the log, and in the replay
	identities map[sender]*policy.Identity

	verdict   policy.Verdict
	hits      []ratelimit.Hit
	rows      []*algorithm.Row
	times     []int64
	decisions []ratelimit.Decision
}

// counter is the state of one counter of the rule: its counts, and its rows by the name of the limit.
type counter struct {
	Counter
	rows  map[string]*algorithm.Row
	carry float64 // of a sample: the fraction of a request that is not counted yet
}

// add replays the requests of a row, and counts the result.
func (t *replayer) add(r *recorded) {
	t.replay.Weight = max(t.replay.Weight, r.weight)
	estimate := int64(r.requests + 0.5)
	switch {
	case r.outcome == "shadow" && r.byRule:
		t.replay.Shadow += estimate
		return
	case r.outcome == "limited" && r.byRule && r.key == "":
		t.replay.WithoutCounter += estimate
		return
	case r.outcome == "limited" && !r.byRule && r.key != "":
		t.replay.ByOthers += estimate
		return
	case r.outcome == "shadow" || r.key == "":
		return
	}
	if t.replay.First.IsZero() {
		t.replay.First = r.time.UTC()
	}
	t.replay.Last = r.time.UTC()
	c := t.counters[r.key]
	if c == nil {
		c = &counter{Counter: Counter{Key: r.key}, rows: map[string]*algorithm.Row{}}
		t.counters[r.key] = c
	}
	c.carry += r.requests
	n := int64(c.carry + 1e-9) // 100 additions of 0.01 must make 1
	c.carry -= float64(n)
	wouldRefuse, refused := n-t.decide(c, r, n), n
	if r.outcome == "allowed" {
		t.passed, refused = true, 0
	}
	c.User = nilIfZero(r.user)
	c.Requests += n
	c.Refused += refused
	c.WithTheseLimits += wouldRefuse
	for i, n := range []int64{refused, wouldRefuse} {
		if n > 0 && r.user != "" {
			t.users[i][r.user] = true
		}
	}
}

// anyAddress stands in for the client address, which a replayed rule does not use.
var anyAddress = netip.MustParseAddr("192.0.2.1")

// decide decides n equal requests of a row, and returns the number that pass.
func (t *replayer) decide(c *counter, r *recorded, n int64) int64 {
	t.evaluateSender(r.sender)
	if t.verdict.Refused() {
		return 0 // the rule has a limit of 0
	}
	cost, now := t.cost, r.time.UnixMicro()
	if r.byRule && !t.CostIsSet && r.cost > 0 {
		cost = r.cost
	}
	t.hits, t.rows, t.times = t.hits[:0], t.rows[:0], t.times[:0]
	for i, mark := range t.verdict.Marks {
		if mark.Overage {
			continue // it never refuses
		}
		hit := t.verdict.Hits[i]
		hit.Cost = cost
		t.hits = append(t.hits, hit)
		if c.rows[mark.Limit] == nil {
			c.rows[mark.Limit] = &algorithm.Row{}
		}
		t.rows = append(t.rows, c.rows[mark.Limit])
		t.times = append(t.times, now)
	}
	t.decisions = append(t.decisions[:0], make([]ratelimit.Decision, len(t.hits))...)
	for passed := range n {
		if !algorithm.Decide(t.hits, t.rows, t.times, t.decisions) {
			return passed // the rest are refused too: they arrive at the same time
		}
	}
	return n
}

// evaluateSender sets t.verdict to the limits of a sender, with the amounts for its user, key and tier.
func (t *replayer) evaluateSender(s sender) {
	id := t.identities[s]
	if id == nil {
		known := t.Limits.users[s.user]
		known.Known, known.User, known.KeyID, known.Tier = true, s.user, s.keyID, s.tier
		if s.keyID != 0 {
			known.Digest = "any" // only the presence of a key matters
		}
		known.Overrides = slices.Concat(t.keyOverrides[s.keyID], known.Overrides)
		id = &known
		t.identities[s] = id
	}
	policy.Evaluate(t.snapshot, &policy.Facts{Tier: s.tier, Address: anyAddress}, id, time.Time{}, &t.verdict)
}

// conclude sums up the counters and the users, and selects the counters that change most. It returns an error
// if the audit log lacks the requests that a replay needs.
func (t *replayer) conclude(maxCounters int) error {
	r, o := &t.replay, []Outcome{{What: "what happened"}, {What: "with these limits"}}
	for _, c := range t.counters {
		for i, refused := range []int64{c.Refused, c.WithTheseLimits} {
			o[i].Requests += c.Requests
			o[i].Refused += refused
			o[i].Passed += c.Requests - refused
			o[i].CountersRefused += min(1, refused)
		}
		if c.Refused != c.WithTheseLimits {
			r.Changed = append(r.Changed, c.Counter)
		}
	}
	for i, users := range t.users {
		o[i].UsersRefused = int64(len(users))
	}
	r.Outcomes = o
	difference := func(c *Counter) int64 {
		return max(c.WithTheseLimits-c.Refused, c.Refused-c.WithTheseLimits)
	}
	slices.SortFunc(r.Changed, func(a, b Counter) int {
		return cmp.Or(cmp.Compare(difference(&b), difference(&a)), strings.Compare(a.Key, b.Key))
	})
	r.Changed = r.Changed[:min(len(r.Changed), maxCounters)]
	const layout = time.DateTime + "Z"
	from, until := r.From.Format(layout), r.Until.Format(layout)
	if o[0].Requests == 0 && r.Shadow == 0 {
		return fmt.Errorf("rule: %q: the audit log has no request that the rule has let pass or refused, "+
			"from %s until %s", r.Rule, from, until)
	}
	if !t.passed {
		return fmt.Errorf("rule: %q: from %s until %s the audit log has only refusals, and a replay needs "+
			"the requests that passed: set `audit all` or `audit sample 10%%` where the rule applies, and "+
			"replay what is recorded from then on", r.Rule, from, until)
	}
	return nil
}
