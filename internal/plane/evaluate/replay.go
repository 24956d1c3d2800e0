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

// Replay compares what other limits of a rule would have done to the requests in the audit log with what
// happened to them.
//
// The limits decide with the steps of the proxies, at the time of each request. A request counts if the
// rule let it pass or refused it. One that another limit has refused does not count, since nothing was
// charged. Nor does one that was blocked or rejected, or had no decision. A request that the rule has
// refused is taken for one that all other limits would let pass. A token bucket keeps its times of
// refill, while a store may delete the row of a full one, which begins anew.
type Replay struct {
	Rule  string    `json:"rule"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Limits are those of the replay, in words.
	Limits string `json:"limits"`
	// WarmUntil is when the longest window of the limits has passed. The counters begin empty, so until then
	// the replay refuses less than the limits would have.
	WarmUntil time.Time `json:"warm_until"`
	// First and Last are the times of the first and the last request.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Weight is the most requests that one row of a sample stands for; 1 without a sample.
	Weight float64 `json:"weight"`
	// Shadow counts the requests that the rule would have refused, but let pass as a shadow rule. ByOthers
	// and WithoutCounter count requests that are left out: other limits refused them, or a limit of 0, which
	// has no counter.
	Shadow         int64 `json:"shadow,omitempty"`
	ByOthers       int64 `json:"refused_by_others,omitempty"`
	WithoutCounter int64 `json:"refused_without_counter,omitempty"`
	// Outcomes count what happened beside what would have happened.
	Outcomes []Outcome `json:"outcomes"`
	// Changed are the counters with the largest change in the number of refusals.
	Changed []Counter `json:"changed"`
}

// Outcome counts requests, and the counters and users with a request that was refused. A sample is
// counted as what it stands for.
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
	// User is that of the last request; nil for nobody.
	User     *string `json:"user_id"`
	Requests int64   `json:"requests"`
	// Refused counts the refused requests, and WithTheseLimits those that would have been.
	Refused         int64 `json:"refused"`
	WithTheseLimits int64 `json:"with_these_limits"`
}

// Limits are the limits of a rule for a replay. The overrides that are in force now hold for the whole
// period, as they would hold after a change of the rule.
type Limits struct {
	Rule string
	// CostIsSet: a request costs what the rule says, and not what it did.
	CostIsSet bool

	words   string
	cost    int64
	longest time.Duration // for which a limit counts a request

	// snapshot has the limits as a rule that matches every request.
	snapshot *policy.Snapshot
	users    map[string]policy.Identity // with their own overrides and their billing periods
	byKey    map[int64][]policy.Override
}

// limitsSQL reads a rule $1: its limits, the overrides in force, the billing periods that limits may
// follow, and in seconds the longest time for which a limit counts a request. A burst lasts longer than
// a window.
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

// ReadLimits reads the limits of a rule; nil if the rule does not exist.
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
		Rule: rule, words: found.Words, cost: found.Cost,
		longest: time.Duration(found.Longest * float64(time.Second)), users: found.Users,
		byKey: map[int64][]policy.Override{},
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
			l.byKey[o.KeyID] = append(l.byKey[o.KeyID], o)
		default:
			u := l.users[o.User]
			u.Overrides = append(u.Overrides, o)
			l.users[o.User] = u
		}
	}
	// The counters come from the audit log: the count by user, or by all, only says whether billing
	// periods are those of users.
	of := policy.Rule{Name: rule, CountBy: []string{"all"}, Cost: l.cost, Limits: found.Limits}
	if slices.ContainsFunc(found.CountBy, func(by string) bool {
		return by == "key" || by == "user" || strings.HasPrefix(by, "user|") || strings.HasPrefix(by,
			"key|user")
	}) {
		of.CountBy = []string{"user"}
	}
	l.snapshot = policy.Compile([]policy.Rule{of}, tiers, nil, 0)
	for _, wrong := range l.snapshot.Wrong() {
		if wrong.Override == "" {
			return nil, wrong.Err
		}
	}
	return l, nil
}

// recordedSQL reads the rows of a rule on a day or a part of it. Rows of the same time are in the order
// in which they were written.
const recordedSQL = `SELECT time, outcome, prefix, coalesce(key, ''), coalesce(user_id, ''),
	coalesce(key_id, 0), coalesce(tier, ''), cost, count, weight, also
FROM rate_limit_audit WHERE time >= $1::timestamptz AND time < $2::timestamptz AND (prefix = $3::text OR
	$3::text = ANY (also))
ORDER BY time, ctid`

// recorded is a row of recordedSQL.
type recorded struct {
	time            time.Time
	outcome, prefix string
	key             string
	sender
	cost, count int64
	weight      float64
	also        []string
}

// sender holds the facts on which the amount of a limit depends.
type sender struct {
	user  string
	keyID int64
	tier  string
}

// Again decides the recorded requests of a rule again, with other limits, and returns up to most
// counters that change. The memory grows with the number of counters and of users, not with that of the
// requests.
func Again(ctx context.Context, conn *pgx.Conn, l *Limits, from, until time.Time, most int) (*Replay, error) {
	t := &trial{
		Limits: l, prefix: "rule/" + l.Rule, counters: map[string]*counter{}, users: map[string]*userCount{},
		identities: map[sender]*policy.Identity{},
		replay: Replay{Rule: l.Rule, From: from.UTC(), Until: until.UTC(), Limits: l.words,
			WarmUntil: from.Add(l.longest).UTC(),
			Weight:    1, Changed: []Counter{}},
	}
	// Each day is a statement of its own, so that the server never sorts more than a partition.
	for day := from.UTC(); day.Before(until); {
		end := day.Truncate(24 * time.Hour).Add(24 * time.Hour)
		if end.After(until) {
			end = until
		}
		result, err := conn.Query(ctx, recordedSQL, day, end, t.prefix)
		if err != nil {
			return nil, err
		}
		var r recorded
		if _, err := pgx.ForEachRow(result, []any{
			&r.time, &r.outcome, &r.prefix, &r.key, &r.user, &r.keyID, &r.tier, &r.cost, &r.count,
			&r.weight, &r.also,
		}, func() error { t.add(&r); return nil }); err != nil {
			return nil, err
		}
		day = end
	}
	return &t.replay, t.conclude(most)
}

// trial decides requests one after the other.
type trial struct {
	*Limits
	prefix     string // of the rule
	replay     Replay
	passed     bool // a request has passed
	counters   map[string]*counter
	users      map[string]*userCount
	identities map[sender]*policy.Identity

	verdict   policy.Verdict
	hits      []ratelimit.Hit
	rows      []*algorithm.Row
	times     []int64
	decisions []ratelimit.Decision
}

// userCount counts how many requests of a user were, and would have been, refused.
type userCount struct {
	name       string
	did, would int64
}

// counter is a counter: its rows by the name of the limit, and what was counted.
type counter struct {
	Counter
	rows  map[string]*algorithm.Row
	carry float64 // of a sample: the part of a request that is not counted yet
}

// counterOf returns the key of the counter of the rule in a row; "" if the row has none.
func (t *trial) counterOf(r *recorded) string {
	if r.prefix == t.prefix {
		return r.key
	}
	for i := 0; i+1 < len(r.also); i += 2 {
		if r.also[i] == t.prefix {
			return r.also[i+1]
		}
	}
	return ""
}

// add decides the requests of a row.
func (t *trial) add(r *recorded) {
	t.replay.Weight = max(t.replay.Weight, r.weight)
	own, key := r.prefix == t.prefix, t.counterOf(r)
	estimate := int64(float64(r.count)*r.weight + 0.5)
	switch {
	case r.outcome == "shadow" && own:
		t.replay.Shadow += estimate
		return
	case r.outcome == "allowed" && key != "", r.outcome == "limited" && own && key != "":
	case r.outcome == "limited" && own:
		t.replay.WithoutCounter += estimate
		return
	case r.outcome == "limited" && key != "":
		t.replay.ByOthers += estimate
		return
	default:
		return
	}
	if t.replay.First.IsZero() {
		t.replay.First = r.time.UTC()
	}
	t.replay.Last = r.time.UTC()
	c := t.counters[key]
	if c == nil {
		c = &counter{Counter: Counter{Key: strings.Clone(key)}, rows: map[string]*algorithm.Row{}}
		t.counters[c.Key] = c
	}
	c.carry += float64(r.count) * r.weight
	n := int64(c.carry + 1e-9) // 100 times 0.01 is 1
	c.carry -= float64(n)
	would, did := n-t.decide(c, r, own, n), n
	if r.outcome == "allowed" {
		t.passed, did = true, 0
	}
	c.Requests += n
	c.Refused += did
	c.WithTheseLimits += would
	c.User = nil
	if r.user == "" {
		return
	}
	u := t.users[r.user]
	if u == nil {
		u = &userCount{name: strings.Clone(r.user)}
		t.users[u.name] = u
	}
	u.did += did
	u.would += would
	c.User = &u.name
}

// anyAddress is for rules that count nobody by the address. The counter itself comes from the row.
var anyAddress = netip.MustParseAddr("192.0.2.1")

// decide decides n equal requests of a row and returns how many pass.
func (t *trial) decide(c *counter, r *recorded, own bool, n int64) int64 {
	t.ask(r.sender)
	if t.verdict.Refused() {
		return 0 // a limit of 0
	}
	cost, now := t.cost, r.time.UnixMicro()
	if own && !t.CostIsSet && r.cost > 0 {
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
	switch len(t.hits) {
	case 0:
		return n
	case 1:
		l := t.hits[0].Limit
		if n == 0 || cost > l.Capacity() {
			return 0
		}
		return algorithm.Of(l).Take(l, t.rows[0], now, n, cost)
	}
	t.decisions = append(t.decisions[:0], make([]ratelimit.Decision, len(t.hits))...)
	for passed := range n {
		if !algorithm.Decide(t.hits, t.rows, t.times, t.decisions) {
			return passed // and so are the others: they come at the same time
		}
	}
	return n
}

// ask sets the verdict to the limits of a sender, with the amounts for its user, key and tier.
func (t *trial) ask(s sender) {
	id := t.identities[s]
	if id == nil {
		of := t.Limits.users[s.user]
		of.Known, of.User, of.KeyID, of.Tier = true, s.user, s.keyID, s.tier
		if s.keyID != 0 {
			of.Digest[0] = 1 // of any key: only that there is one counts
		}
		of.Overrides = slices.Concat(t.byKey[s.keyID], of.Overrides)
		id = &of
		t.identities[sender{strings.Clone(s.user), s.keyID, strings.Clone(s.tier)}] = id
	}
	policy.Evaluate(t.snapshot, &policy.Facts{Tier: s.tier, Address: anyAddress}, id, time.Time{}, &t.verdict)
}

// conclude adds the counters and the users up, and finds the counters that change the most. It fails if
// the audit log lacks what a replay needs.
func (t *trial) conclude(most int) error {
	r := &t.replay
	o := []Outcome{{What: "what happened"}, {What: "with these limits"}}
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
	for _, u := range t.users {
		o[0].UsersRefused += min(1, u.did)
		o[1].UsersRefused += min(1, u.would)
	}
	r.Outcomes = o
	difference := func(c *Counter) int64 {
		return max(c.WithTheseLimits-c.Refused, c.Refused-c.WithTheseLimits)
	}
	slices.SortFunc(r.Changed, func(a, b Counter) int {
		return cmp.Or(cmp.Compare(difference(&b), difference(&a)), strings.Compare(a.Key, b.Key))
	})
	r.Changed = r.Changed[:min(len(r.Changed), most)]
	from, until := moment(r.From), moment(r.Until)
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

// moment is a time for people.
func moment(t time.Time) string { return t.UTC().Format(time.DateTime) + "Z" }
