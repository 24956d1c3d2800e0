package admin

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A setting of a rule is a parameter of the function rate_limit_rule, which checks it: a column of the rule or of its
// limits, or the amount of a limit with a window that its name says. What the function cannot do is here: taking a
// setting back, limits of any window, and unlimited ones.

// amounts are the settings that are amounts of limits.
var amounts = []columns.Column{
	{Name: "per_second", Kind: columns.Amount, Help: "how much may pass; or unlimited"},
	{Name: "per_minute", Kind: columns.Amount, Help: "the same for a minute"},
	{Name: "per_hour", Kind: columns.Amount, Help: "the same for an hour"},
	{Name: "per_day", Kind: columns.Amount, Help: "the same for 24 hours"},
	{Name: "per_month", Kind: columns.Amount, Help: "the same for a month of the calendar, or of the user's billing period"},
	{Name: "in_flight", Kind: columns.Amount, Help: "how many requests may run at once"},
}

// ruleSettings are all parameters: the columns of the rule, the amounts, and the columns of all limits of the rule.
var ruleSettings = func() []*columns.Column {
	all := columns.Tables[columns.Rules].Set()
	for i := range amounts {
		all = append(all, &amounts[i])
	}
	return append(all, columns.Tables[columns.Limits].Set()...)
}()

// limitPrefix begins the settings that are limits of any window.
const limitPrefix = "limit."

// banPrefix begins the settings of a ban. They are given together, so to take one back is to
// take all of them back.
const banPrefix = "ban_"

// RuleSettings are the settings that SetRule knows. The last one is no column.
func RuleSettings() []*Setting {
	return append(slices.Clip(ruleSettings), &Setting{Name: limitPrefix + "NAME", Help: "a limit of any window, as in 100/10s or 10000/1mo calendar Europe/Berlin; or of requests in flight, as in 5/in_flight"})
}

// ruleChange is what SetRule is asked for.
type ruleChange struct {
	limits []ruleLimit // of any window, and unlimited ones
	parameters
	// ofRule and ofLimits are columns that get their defaults, and gone are limits to delete.
	ofRule, ofLimits, gone []string
	zero                   string // a setting that lets nothing pass, or ""
}

// SetRule makes a rule, or changes the settings that are named, each as name=value. An empty
// value takes a setting back to its default, and deletes a limit. An amount of 0, which lets nothing pass, needs
// force. It reports whether the rule is new.
func (d *Database) SetRule(ctx context.Context, name string, assignments []string, force bool) (isNew bool, err error) {
	change, err := parseRuleChange(assignments)
	if err != nil {
		return false, err
	}
	if change.zero != "" && !force {
		return false, &ratelimit.FieldError{Field: change.zero, Value: "0", Want: "above 0, or given with --force: it would refuse every request, which action=block says"}
	}
	err = d.usably(ctx, name, func(w *work) { isNew = w.changeRule(name, &change) })
	return isNew, withValues(err, assignments...)
}

// changeRule makes or changes a rule.
func (w *work) changeRule(name string, change *ruleChange) (isNew bool) {
	// Commands that change one rule at the same time take the locks in one order.
	if len(change.limits) > 0 { // they refer to the rule
		isNew = w.execute("INSERT INTO rate_limit_rules (name) VALUES ($1) ON CONFLICT ON CONSTRAINT rate_limit_rules_pkey DO NOTHING", name) > 0
	}
	w.execute("SELECT FROM rate_limit_rules WHERE name = $1 FOR UPDATE", name)
	// What is taken back in one row is so together, since constraints can be about several columns.
	if len(change.ofRule) > 0 {
		w.execute("UPDATE rate_limit_rules SET "+strings.Join(change.ofRule, " = DEFAULT, ")+" = DEFAULT WHERE name = $1", name)
	}
	if len(change.ofLimits) > 0 {
		w.execute("UPDATE rate_limit_rule_limits SET "+strings.Join(change.ofLimits, " = DEFAULT, ")+" = DEFAULT WHERE rule = $1", name)
	}
	if len(change.gone) > 0 {
		w.execute("DELETE FROM rate_limit_rule_limits WHERE rule = $1 AND name = ANY ($2::text[])", name, change.gone)
	}
	for _, l := range change.limits {
		w.execute(setLimitSQL, name, l.name, l.events, l.per, l.calendar, l.timeZone)
	}
	// The function also checks what the constraints cannot see.
	sql := "SELECT rate_limit_rule($1::text"
	for i, setting := range change.names {
		sql += ", " + setting + " => " + change.sql[i]
	}
	done := some[string](w, sql+") FROM (SELECT $2::jsonb) AS rows(r)", name, toJSON(change.values))
	return isNew || len(done) > 0 && done[0] == created
}

// usably runs commands that change a rule in one transaction, and refuses the change if proxies
// could then not use the rule, or another rule that they can use now.
func (d *Database) usably(ctx context.Context, name string, commands func(w *work)) error {
	return d.together(ctx, func(w *work) {
		w.stillUsable(func(wrong policy.Wrong) error {
			if wrong.Rule == name {
				return wrong.Err
			}
			return nil
		}, commands)
	})
}

// stillUsable runs commands that change rules. It fails if proxies could then not use one of these
// rules, for which own returns an error, or another rule that they can use now.
func (w *work) stillUsable(own func(policy.Wrong) error, commands func(w *work)) {
	was := map[string]bool{}
	for _, wrong := range w.wrongRules() {
		was[wrong.Rule] = was[wrong.Rule] || wrong.Override == ""
	}
	commands(w)
	for _, wrong := range w.wrongRules() {
		if wrong.Override != "" {
			continue
		}
		w.fail(own(wrong))
		if !was[wrong.Rule] {
			w.fail(fmt.Errorf("the rule %q could no longer be used: %w", wrong.Rule, wrong.Err))
		}
	}
}

// wrongRules says which rules and overrides proxies cannot use, and why: by compiling them as proxies do.
func (w *work) wrongRules() []policy.Wrong {
	var texts []string
	for _, r := range list[struct{ Part, Name, Text string }](w, policy.RulesSQL()) {
		texts = append(texts, r.Part, r.Name, r.Text)
	}
	rules, overrides, err := policy.DecodeRules(texts)
	w.fail(err)
	return policy.Compile(rules, overrides, nil, policyOptions).Wrong()
}

func parseRuleChange(texts []string) (ruleChange, error) {
	var change ruleChange
	assignments, err := parseAssignments(texts, namesOf(RuleSettings()), func(name string) bool {
		return strings.HasPrefix(name, limitPrefix) && len(name) > len(limitPrefix)
	})
	if err != nil {
		return change, err
	}
	for _, a := range assignments {
		if err := change.add(a); err != nil {
			return change, err
		}
	}
	return change, nil
}

// add adds an assignment.
func (c *ruleChange) add(a assignment) error {
	name, isLimit := strings.CutPrefix(a.name, limitPrefix)
	if isLimit && a.value == "" {
		c.gone = append(c.gone, name)
		return nil
	}
	if isLimit {
		l, err := parseRuleLimit(a.name, name, a.value)
		if l.events != nil && *l.events == 0 {
			c.zero = a.name
		}
		c.limits = append(c.limits, l)
		return err
	}
	s := ruleSettings[slices.IndexFunc(ruleSettings, func(s *columns.Column) bool { return s.Name == name })]
	switch {
	case a.value == "":
		return c.takeBack(s)
	case a.value == policyfile.Unlimited && s.Kind == columns.Amount:
		l, err := parseRuleLimit(s.Name, s.Name, a.value+"/"+windows[s.Name])
		c.limits = append(c.limits, l)
		return err
	}
	value, err := c.parameters.add(columns.Rules, s, a.value, time.Time{})
	if s.Kind == columns.Amount && value == "0" {
		c.zero = s.Name
	}
	return err
}

// takeBack takes a setting back.
func (c *ruleChange) takeBack(s *columns.Column) error {
	switch {
	case s.Name == "algorithm": // there is nothing to go back to
		return &ratelimit.FieldError{Field: s.Name, Want: s.Help}
	case s.Kind == columns.Amount:
		c.gone = append(c.gone, s.Name)
	case columns.Tables[columns.Limits].Find(s.Name) != nil:
		c.ofLimits = append(c.ofLimits, s.Name)
	case strings.HasPrefix(s.Name, banPrefix):
		for _, other := range ruleSettings {
			if strings.HasPrefix(other.Name, banPrefix) && !slices.Contains(c.ofRule, other.Name) {
				c.ofRule = append(c.ofRule, other.Name)
			}
		}
	default:
		c.ofRule = append(c.ofRule, s.Name)
	}
	return nil
}

// calendarNames are the units in rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"", "day", "week", "month", "year"}

// ruleLimit is a row of rate_limit_rule_limits that is to be made or changed. Fields that are
// nil are NULL.
type ruleLimit struct {
	name     string
	events   *int64
	per      *string
	calendar *string
	timeZone *string
}

const wantLimit = "EVENTS/WINDOW, as in 100/10s, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight; or empty, to delete it"

// parseRuleLimit reads the setting limit.NAME.
func parseRuleLimit(setting, name, text string) (ruleLimit, error) {
	l := ruleLimit{name: name}
	wrong := &ratelimit.FieldError{Field: setting, Value: text, Want: wantLimit}
	amount, window, found := strings.Cut(text, "/")
	if !found {
		return l, wrong
	}
	if amount = strings.TrimSpace(amount); amount != policyfile.Unlimited {
		events, err := strconv.ParseInt(amount, 10, 64)
		if err != nil || events < 0 || events > ratelimit.MaxEvents {
			return l, wrong
		}
		l.events = &events
	}
	if strings.TrimSpace(window) == ratelimit.InFlight.String() {
		return l, nil
	}
	rate, err := ratelimit.ParseRate("1/" + window)
	if err != nil {
		return l, wrong
	}
	if rate.Calendar == ratelimit.NoCalendar {
		per := intervalOf(rate.Window)
		l.per = &per
		return l, nil
	}
	l.calendar = &calendarNames[rate.Calendar]
	if rate.Zone != "" {
		l.timeZone = &rate.Zone
	}
	return l, nil
}

// windows are those of the settings that are named by them. That of per_month is on the calendar.
var windows = map[string]string{"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "1d", "per_month": "1mo calendar", "in_flight": "in_flight"}

// setLimitSQL gives a new limit the algorithm of the others of its rule. One on the calendar is
// a fixed window, and one without a time is of requests in flight.
const setLimitSQL = `INSERT INTO rate_limit_rule_limits AS l (rule, name, algorithm, events, per, calendar, time_zone)
SELECT $1::text, $2::text, CASE WHEN $5::text IS NOT NULL THEN 'fixed_window' WHEN $4::interval IS NULL THEN 'in_flight' ELSE coalesce(
	(SELECT min(o.algorithm) FROM rate_limit_rule_limits o WHERE o.rule = $1::text AND o.per IS NOT NULL HAVING count(DISTINCT o.algorithm) = 1), 'sliding_window') END,
	$3::bigint, $4::interval, $5::text, $6::text
ON CONFLICT ON CONSTRAINT rate_limit_rule_limits_pkey DO UPDATE SET events = excluded.events, per = excluded.per, calendar = excluded.calendar,
	time_zone = excluded.time_zone, algorithm = CASE WHEN (l.calendar IS NULL) = (excluded.calendar IS NULL) AND (l.per IS NULL) = (excluded.per IS NULL) THEN l.algorithm ELSE excluded.algorithm END,
	burst = CASE WHEN excluded.per IS NOT NULL THEN l.burst END`
