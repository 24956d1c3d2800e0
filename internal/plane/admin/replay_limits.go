package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
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

// ReplaySettings are the settings of a rule that Replay can change: those of its limits, and what a request costs.
func ReplaySettings() []*Setting {
	return slices.DeleteFunc(RuleSettings(), func(s *Setting) bool {
		return s.Name == ratelimit.InFlight.String() || s.Name != "cost" && columns.Tables[columns.Rules].Find(s.Name) != nil
	})
}

// replayLimits reads the limits of a rule as SetRule would make them, in a transaction that is
// rolled back.
func (d *Database) replayLimits(ctx context.Context, rule string, settings []string) (l *replayLimits, err error) {
	assignments, err := parseReplay(settings)
	if err != nil {
		return nil, err
	}
	err = d.undone(ctx, func(w *work) {
		if len(settings) > 0 {
			// A rule that is off may lack limits: the error about that is this function's.
			w.oneRule(rule, w.execute("UPDATE rate_limit_rules SET mode = 'off' WHERE name = $1", rule))
			w.changeRows(w.ruleChanges(rule, assignments, true), bare)
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
	if l.limits = found[0].Limits; len(l.limits) == 0 {
		w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "left with a limit"})
	}
	for i := range l.limits {
		l.index[l.limits[i].Name] = i
		if l.limits[i].Limit.Algorithm == ratelimit.InFlight {
			w.fail(&ratelimit.FieldError{Field: "rule", Value: rule, Want: "without a limit of requests in flight: the audit log does not have when requests ended"})
		}
	}
	l.listed = slices.DeleteFunc(w.ask(ruleLimitsSQL), func(limit Row) bool { return limit.Text("rule") != rule })
	slices.SortFunc(l.listed, func(a, b Row) int { return strings.Compare(a.Text("name"), b.Text("name")) })
	person := slices.ContainsFunc(found[0].CountBy, func(by string) bool {
		return by == "key" || by == "user" || strings.HasPrefix(by, "user|") || strings.HasPrefix(by, "key|user")
	})
	l.cost = found[0].Cost
	tiers := w.replayOverrides(rule, l)
	if w.err == nil {
		w.fail(l.compile(rule, person, tiers))
	}
	if person && l.isPeriodic() {
		w.replayPeriods(l)
	}
	return l
}

// parseReplay reads settings of limits. None are none.
func parseReplay(settings []string) ([]assignment, error) {
	if len(settings) == 0 {
		return nil, nil
	}
	all, err := parseAssignments(settings, namesOf(ReplaySettings()), isLimit)
	if err != nil {
		err = fmt.Errorf("%w: a replay changes limits, and not to which requests they apply", err)
	}
	return all, err
}

// compile makes the snapshot. The count by user, or by all, only says whether billing periods
// are those of users: the counters come from the audit log.
func (l *replayLimits) compile(rule string, person bool, tiers []policy.Override) error {
	r := policy.Rule{Name: rule, CountBy: []string{"all"}, Cost: l.cost, Limits: l.limits}
	if person {
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

// replayOverrides reads the overrides of a rule that are in force. It returns those of tiers.
func (w *work) replayOverrides(rule string, l *replayLimits) (tiers []policy.Override) {
	for _, o := range some[policy.Override](w, "SELECT "+policy.OverrideSQL+" FROM rate_limit_overrides o WHERE o.rule = $1 AND o.valid @> now()", rule) {
		o.From, o.Until = time.Time{}, time.Time{}
		switch {
		case o.Tier != "":
			tiers = append(tiers, o)
		case o.KeyID != 0:
			l.byKey[o.KeyID] = append(l.byKey[o.KeyID], o)
		default:
			l.own[o.User] = append(l.own[o.User], o)
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
	return slices.ContainsFunc(l.limits, func(limit policy.RuleLimit) bool {
		return limit.Limit.Calendar == ratelimit.Month || limit.Limit.Calendar == ratelimit.Year
	})
}

// window is the longest time for which a limit keeps a request in mind.
func (l *replayLimits) window() time.Duration {
	const day = 24 * time.Hour
	calendars := map[ratelimit.Calendar]time.Duration{ratelimit.Day: day, ratelimit.Week: 7 * day, ratelimit.Month: 31 * day, ratelimit.Year: 366 * day}
	longest := time.Duration(0)
	for i := range l.limits {
		limit := &l.limits[i].Limit
		switch seconds := limit.Window.Seconds(); {
		case l.limits[i].Overage:
		case limit.Calendar != ratelimit.NoCalendar:
			longest = max(longest, calendars[limit.Calendar])
		case limit.Events > 0: // a burst lasts longer
			seconds *= max(1, float64(limit.Burst)/float64(limit.Events))
			longest = max(longest, time.Duration(min(seconds, ratelimit.MaxWindow.Seconds())*float64(time.Second)))
		default:
			longest = max(longest, limit.Window)
		}
	}
	return longest
}
