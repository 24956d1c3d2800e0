package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// replayLimits are the limits of a replay: those that a rule has now, with some settings changed.
// The overrides that are in force now hold for the whole period, as they would hold after a
// change of the rule by SetRule.
type replayLimits struct {
	listed    []Row
	limits    []policy.RuleLimit
	index     map[string]int // in limits, by name
	cost      int64          // of a request
	costIsSet bool           // by the settings
	warmUntil time.Time      // see Replay

	// snapshot has the limits as a rule that matches every request.
	snapshot *policy.Snapshot
	users    map[string]policy.Identity // with their own overrides and their billing periods
	byKey    map[int64][]policy.Override
}

// replaySettings are the settings of a rule that Replay can change: those of its limits, and what a request costs.
var replaySettings = strings.Fields("cost per_second per_minute per_hour per_day per_month algorithm burst durable on_exceed limit.NAME")

// replayLimits reads the limits of a rule as SetRule would make them, in a transaction that is
// rolled back.
func (d *Database) replayLimits(ctx context.Context, q *ReplayQuery) (l *replayLimits, err error) {
	assignments, err := parseReplay(q.Settings)
	if err != nil {
		return nil, err
	}
	err = d.undone(ctx, func(w *work) {
		if len(q.Settings) > 0 {
			// A rule that is off may lack limits: the error about that is this function's.
			w.oneRule(q.Rule, w.execute("UPDATE rate_limit_rules SET mode = 'off' WHERE name = $1", q.Rule))
			w.set(SetRule, q.Rule, q.Settings, true)
		}
		l = w.limitsOf(q.Rule, q.From)
	})
	if err == nil {
		l.costIsSet = slices.ContainsFunc(assignments, func(a assignment) bool { return a.name == "cost" })
	}
	return l, err
}

// limitsOfSQL reads a rule $1 for limitsOf: its limits, the overrides in force, the billing periods that limits may follow, and
// when the longest time for which a limit keeps a request in mind has passed since $2. A burst lasts longer than a window.
var limitsOfSQL = "SELECT r.action, r.count_by, r.cost, " + policy.LimitsSQL + `,
	(SELECT json_agg(` + policy.OverrideSQL + `) FROM rate_limit_overrides o WHERE o.rule = r.name AND o.valid @> now()),
	(SELECT coalesce(json_object_agg(u.user_id, json_build_object('PeriodStart', u.period_start::text || 'T00:00:00Z', 'TimeZone', u.time_zone)), '{}')
		FROM rate_limit_users u WHERE u.period_start IS NOT NULL
			AND EXISTS (SELECT FROM rate_limit_rule_limits l WHERE l.rule = r.name AND l.calendar IN ('month', 'year'))),
	(SELECT coalesce(max($2::timestamptz + CASE l.calendar WHEN 'day' THEN interval '1 day' WHEN 'week' THEN interval '7 days'
				WHEN 'month' THEN interval '31 days' WHEN 'year' THEN interval '366 days' ELSE interval '1 s' *
			least(extract(epoch FROM l.per)::float8 * greatest(1, coalesce(l.burst::float8 / nullif(l.events, 0), 1)), ` + longestWindow + `) END), $2)
		FROM rate_limit_rule_limits l WHERE l.rule = r.name AND l.on_exceed = 'refuse')
FROM rate_limit_rules r WHERE r.name = $1`

// longestWindow is in seconds.
var longestWindow = fmt.Sprintf("%.0f", ratelimit.MaxWindow.Seconds())

// limitsOf reads the limits of a rule for a replay that begins at a time.
func (w *work) limitsOf(rule string, from time.Time) *replayLimits {
	found := list[struct {
		Action    string
		CountBy   []string
		Cost      int64
		Limits    []policy.RuleLimit
		Overrides []policy.Override
		Users     map[string]policy.Identity
		WarmUntil time.Time
	}](w, limitsOfSQL, rule, from)
	w.oneRule(rule, int64(len(found)))
	if w.err != nil {
		return nil
	}
	r := &found[0]
	if r.Action != string(policy.Charge) {
		w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "a rule with limits: its action is " + r.Action})
	}
	if len(r.Limits) == 0 {
		w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "left with a limit"})
	}
	l := &replayLimits{
		limits: r.Limits, index: map[string]int{}, cost: r.Cost, warmUntil: r.WarmUntil.UTC(), users: r.Users, byKey: map[int64][]policy.Override{},
	}
	for i := range l.limits {
		l.index[l.limits[i].Name] = i
		if l.limits[i].Limit.Algorithm == ratelimit.InFlight {
			w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "without a limit of requests in flight: the audit log does not have when requests ended"})
		}
	}
	l.listed = slices.DeleteFunc(w.ask(ruleLimitsSQL), func(limit Row) bool { return limit.Text("rule") != rule })
	slices.SortFunc(l.listed, func(a, b Row) int { return strings.Compare(a.Text("name"), b.Text("name")) })
	var tiers []policy.Override
	for _, o := range r.Overrides {
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
	w.fail(l.compile(rule, r.CountBy, tiers))
	return l
}

// parseReplay reads settings of limits. None are none.
func parseReplay(settings []string) ([]assignment, error) {
	if len(settings) == 0 {
		return nil, nil
	}
	all, err := parseAssignments(settings, replaySettings, isLimit)
	if err != nil {
		err = fmt.Errorf("%w: a replay changes limits, and not to which requests they apply", err)
	}
	return all, err
}

// compile makes the snapshot. The counters come from the audit log: the count by user, or by all, only says whether billing
// periods are those of users.
func (l *replayLimits) compile(rule string, countBy []string, tiers []policy.Override) error {
	r := policy.Rule{Name: rule, CountBy: []string{"all"}, Cost: l.cost, Limits: l.limits}
	if slices.ContainsFunc(countBy, func(by string) bool {
		return by == "key" || by == "user" || strings.HasPrefix(by, "user|") || strings.HasPrefix(by, "key|user")
	}) {
		r.CountBy = []string{"user"}
	}
	l.snapshot = policy.Compile([]policy.Rule{r}, tiers, nil, policyOptions)
	for _, wrong := range l.snapshot.Wrong() {
		if wrong.Override == "" {
			return wrong.Err
		}
	}
	return nil
}

// identity is the sender of recorded requests, with its overrides and its billing period.
func (l *replayLimits) identity(s sender) *policy.Identity {
	id := l.users[s.user]
	id.Known, id.User, id.KeyID, id.Tier = true, s.user, s.keyID, s.tier
	if s.keyID != 0 {
		id.Digest[0] = 1 // of any key: only that there is one counts
	}
	id.Overrides = slices.Concat(l.byKey[s.keyID], id.Overrides)
	return &id
}
