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
	listed    []RuleLimit
	index     map[string]int // in listed, by name
	cost      int64          // of a request
	costIsSet bool           // by the settings

	// snapshot has the limits as a rule that matches every request.
	snapshot *policy.Snapshot
	own      map[string][]policy.Override // of users
	byKey    map[int64][]policy.Override
	periods  map[string]period
}

// period is the billing period of a user.
type period struct {
	start    time.Time
	timeZone string
}

// replaySettings are the settings of a rule that a replay can change: those of its limits.
var replaySettings = []string{
	"per_second", "per_minute", "per_hour", "per_day", "per_month", limitPrefix + "NAME", "algorithm", "burst", "cost", "on_exceed", "durable",
}

// ReplaySettings are the settings that Replay knows.
func ReplaySettings() []Setting {
	var all []Setting
	for _, s := range RuleSettings() {
		if slices.Contains(replaySettings, s.Name) {
			all = append(all, s)
		}
	}
	return all
}

// replayLimits reads the limits of a rule as SetRule would make them, in a transaction that is
// rolled back.
func (d *Database) replayLimits(ctx context.Context, rule string, settings []string) (l *replayLimits, err error) {
	change, err := parseReplay(settings)
	if err != nil {
		return nil, err
	}
	err = d.undone(ctx, func(w *work) {
		if len(settings) > 0 {
			// A rule that is off may lack limits: the error about that is this function's.
			w.oneRule(rule, w.execute("UPDATE rate_limit_rules SET mode = 'off' WHERE name = $1", rule))
			w.changeRule(rule, &change)
			w.err = withValues(w.err, settings...)
		}
		l = w.limitsOf(rule)
	})
	if err == nil {
		l.costIsSet = slices.ContainsFunc(settings, func(setting string) bool { return strings.HasPrefix(setting, "cost=") })
	}
	return l, err
}

// limitsOf reads the limits of a rule, for a replay, with the overrides and the billing periods.
func (w *work) limitsOf(rule string) *replayLimits {
	l := &replayLimits{index: map[string]int{}, own: map[string][]policy.Override{}, byKey: map[int64][]policy.Override{}}
	found := list[struct {
		Action  string
		CountBy []string
		Cost    int64
		Limits  []policy.RuleLimit
	}](w, "SELECT r.action, r.count_by, r.cost, "+policy.LimitsSQL+" FROM rate_limit_rules r WHERE r.name = $1", rule)
	w.oneRule(rule, int64(len(found)))
	if w.err != nil {
		return nil
	}
	if action := found[0].Action; action != policy.Charge.String() {
		w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "a rule with limits: its action is " + action})
	}
	for _, limit := range list[RuleLimit](w, ruleLimitsSQL) {
		if limit.Rule != rule {
			continue
		}
		if limit.Algorithm == ratelimit.InFlight.String() {
			w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "without a limit of requests in flight: the audit log does not have when requests ended"})
		}
		l.listed = append(l.listed, limit)
	}
	if len(l.listed) == 0 {
		w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "left with a limit"})
	}
	slices.SortFunc(l.listed, func(a, b RuleLimit) int { return strings.Compare(a.Name, b.Name) })
	person := slices.ContainsFunc(found[0].CountBy, func(by string) bool {
		return by == "key" || by == "user" || strings.HasPrefix(by, "user|") || strings.HasPrefix(by, "key|user")
	})
	l.cost = found[0].Cost
	tiers := w.replayOverrides(rule, l)
	if w.err == nil {
		w.fail(l.compile(rule, person, found[0].Limits, tiers))
	}
	if person && l.isPeriodic() {
		w.replayPeriods(l)
	}
	return l
}

// parseReplay reads settings of limits. None are none.
func parseReplay(settings []string) (ruleChange, error) {
	if len(settings) == 0 {
		return ruleChange{}, nil
	}
	_, err := parseAssignments(settings, replaySettings, func(name string) bool {
		return strings.HasPrefix(name, limitPrefix) && len(name) > len(limitPrefix)
	})
	if err != nil {
		return ruleChange{}, fmt.Errorf("%w: a replay changes limits, and not to which requests they apply", err)
	}
	return parseRuleChange(settings)
}

// compile makes the snapshot. The count by user, or by all, only says whether billing periods
// are those of users: the counters come from the audit log.
func (l *replayLimits) compile(rule string, person bool, limits []policy.RuleLimit, tiers []policy.Override) error {
	r := policy.Rule{Name: rule, CountBy: []string{"all"}, Cost: l.cost, Limits: limits}
	if person {
		r.CountBy = []string{"user"}
	}
	for i := range l.listed {
		l.index[l.listed[i].Name] = i
	}
	l.snapshot = policy.Compile([]policy.Rule{r}, tiers, nil, policyOptions)
	for _, wrong := range l.snapshot.Wrong() {
		if wrong.Override == "" {
			return wrong.Err
		}
	}
	return nil
}

// replayOverrides reads the overrides of a rule that are in force. It returns those of tiers.
func (w *work) replayOverrides(rule string, l *replayLimits) (tiers []policy.Override) {
	for _, r := range list[struct {
		Limit, Tier, User string
		KeyID             int64
		Events            *int64
		Burst             int64
	}](w, `SELECT limit_name, coalesce(tier, ''), coalesce(user_id, ''), coalesce(key_id, 0), events, coalesce(burst, 0)
FROM rate_limit_overrides WHERE rule = $1 AND valid @> now()`, rule) {
		o := policy.Override{Rule: rule, Limit: r.Limit, Tier: r.Tier, User: r.User, KeyID: r.KeyID, Unlimited: r.Events == nil, Burst: r.Burst}
		if r.Events != nil {
			o.Events = *r.Events
		}
		switch {
		case r.Tier != "":
			tiers = append(tiers, o)
		case r.KeyID != 0:
			l.byKey[r.KeyID] = append(l.byKey[r.KeyID], o)
		default:
			l.own[r.User] = append(l.own[r.User], o)
		}
	}
	return tiers
}

// replayPeriods reads the billing periods of users.
func (w *work) replayPeriods(l *replayLimits) {
	l.periods = map[string]period{}
	for _, r := range list[struct {
		User     string
		Start    time.Time
		TimeZone string
	}](w, "SELECT user_id, period_start, coalesce(time_zone, '') FROM rate_limit_users WHERE period_start IS NOT NULL") {
		l.periods[r.User] = period{r.Start, r.TimeZone}
	}
}

// identity is the sender of recorded requests, with its overrides and its billing period.
func (l *replayLimits) identity(s sender) *policy.Identity {
	id := &policy.Identity{Known: true, User: s.user, KeyID: s.keyID, Tier: s.tier}
	if s.keyID != 0 {
		id.Digest[0] = 1 // of any key: only that there is one counts
	}
	id.Overrides = append(append(id.Overrides, l.byKey[s.keyID]...), l.own[s.user]...)
	id.PeriodStart, id.TimeZone = l.periods[s.user].start, l.periods[s.user].timeZone
	return id
}

// isPeriodic reports whether a limit may follow the billing periods of users.
func (l *replayLimits) isPeriodic() bool {
	return slices.ContainsFunc(l.listed, func(limit RuleLimit) bool {
		return limit.Calendar != nil && (*limit.Calendar == "month" || *limit.Calendar == "year")
	})
}

// window is the longest time for which a limit keeps a request in mind.
func (l *replayLimits) window() time.Duration {
	const day = 24 * time.Hour
	calendars := map[string]time.Duration{"day": day, "week": 7 * day, "month": 31 * day, "year": 366 * day}
	longest := time.Duration(0)
	for i := range l.listed {
		limit := &l.listed[i]
		if limit.OnExceed == "overage" {
			continue
		}
		if limit.Calendar != nil {
			longest = max(longest, calendars[*limit.Calendar])
			continue
		}
		seconds := *limit.Seconds
		if limit.Burst != nil && limit.Events != nil && *limit.Events > 0 {
			seconds = max(seconds, seconds*float64(*limit.Burst)/float64(*limit.Events))
		}
		longest = max(longest, time.Duration(min(seconds, ratelimit.MaxWindow.Seconds())*float64(time.Second)))
	}
	return longest
}
