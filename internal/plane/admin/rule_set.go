package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A setting of a rule is a column of the rule or of its limits, or the amount of a limit with a window that its name
// says.

// amounts are the settings that are amounts of limits.
var amounts = []columns.Column{
	{Name: "per_second", Kind: columns.Amount},
	{Name: "per_minute", Kind: columns.Amount},
	{Name: "per_hour", Kind: columns.Amount},
	{Name: "per_day", Kind: columns.Amount},
	{Name: "per_month", Kind: columns.Amount},
	{Name: "in_flight", Kind: columns.Amount},
}

// ruleSettings are the columns of the rule, the amounts, and the columns of all limits of the rule.
var ruleSettings = func() []*columns.Column {
	all := columns.Tables[columns.Rules].Set()
	for i := range amounts {
		all = append(all, &amounts[i])
	}
	return append(all, columns.Tables[columns.Limits].Set()...)
}()

// limitPrefix begins the settings that are limits of any window.
const limitPrefix = "limit."

// RuleSettings are the settings that SetRule knows. The last one is no column.
func RuleSettings() []*Setting {
	return append(slices.Clip(ruleSettings), &Setting{Name: limitPrefix + "NAME"})
}

// SetRule makes a rule, or changes the settings that are named, each as name=value. An empty
// value takes a setting back to its default, and deletes a limit. An amount of 0, which lets nothing pass, needs
// force. It reports whether the rule is new.
func (d *Database) SetRule(ctx context.Context, name string, texts []string, force bool) (isNew bool, err error) {
	assignments, err := parseAssignments(texts, namesOf(RuleSettings()), isLimit)
	if err != nil {
		return false, err
	}
	err = d.together(ctx, func(w *work) {
		changes := w.ruleChanges(name, assignments, force)
		isNew = slices.ContainsFunc(changes, func(c policyfile.Difference) bool {
			return c.Table == columns.Rules && c.Outcome == policyfile.Created
		})
		w.makeChanges(changes)
	})
	return isNew, err
}

// isLimit reports whether a setting is a limit of any window.
func isLimit(name string) bool {
	return strings.HasPrefix(name, limitPrefix) && len(name) > len(limitPrefix)
}

// ruleChanges are what settings change of a rule and its limits.
func (w *work) ruleChanges(name string, assignments []assignment, force bool) []policyfile.Difference {
	// Commands that change one rule at the same time take the locks in one order.
	e := w.edit(name, map[int]string{columns.Rules: "t.name = $1", columns.Limits: "t.rule = $1"})
	e.setRule(name, assignments, force)
	return e.changes()
}

// setRule sets columns of a rule, which may be new, and of its limits.
func (e *edit) setRule(name string, assignments []assignment, force bool) {
	rule, _ := e.want.Row(columns.Rules, name)
	// What is taken back is so first, and what is said of all limits comes last: then all limits are there.
	place := func(a assignment) int {
		switch {
		case a.name == "burst": // which depends on the algorithm
			return 3
		case columns.Tables[columns.Limits].Find(a.name) != nil:
			return 2
		case a.value == "":
			return 0
		}
		return 1
	}
	ordered := slices.Clone(assignments)
	slices.SortStableFunc(ordered, func(a, b assignment) int { return place(a) - place(b) })
	for _, a := range ordered {
		switch c := columns.Tables[columns.Rules].Find(a.name); {
		case c == nil && place(a) >= 2:
			e.setLimits(a)
		case c == nil:
			e.setLimit(name, a, force)
		default:
			e.setColumn(columns.Rules, rule, c, a.value, time.Time{})
		}
	}
}

const wantLimit = "EVENTS/WINDOW, as in 100/10s, unlimited/1h, 10000/1mo calendar Europe/Berlin or 5/in_flight; " +
	"or empty, to delete it"

// windows are those of the settings that are named by them. That of per_month is on the calendar.
var windows = map[string]string{
	"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "1d", "per_month": "1mo calendar",
	"in_flight": "in_flight",
}

// setLimit makes, changes or deletes a limit of a rule. A setting that is named by its window keeps the window of a
// limit that is there.
func (e *edit) setLimit(rule string, a assignment, force bool) {
	t := &policyfile.Tables[columns.Limits]
	name, isAny := strings.CutPrefix(a.name, limitPrefix)
	row, isNew := e.want.Row(columns.Limits, rule, name)
	if a.value == "" {
		e.want.Delete(columns.Limits, row)
		return
	}
	amount, window, found := a.value, windows[name], true
	wrong := &ratelimit.FieldError{Field: a.name, Value: a.value, Want: wantLimit}
	if isAny {
		amount, window, found = strings.Cut(a.value, "/")
	}
	events, err := t.Value(&columns.Column{Name: a.name, Kind: columns.Amount}, []string{strings.TrimSpace(amount)})
	switch {
	case isAny && (err != nil || !found):
		err = wrong
	case events == "0" && !force:
		err = &ratelimit.FieldError{Field: a.name, Value: "0",
			Want: "above 0, or given with --force: it would refuse every request, which action=block says"}
	}
	e.fail(err)
	row.Fields["events"] = events
	if !isNew && !isAny {
		return
	}
	window = strings.TrimSpace(window)
	rate, err := ratelimit.ParseRate("1/" + window)
	hadWindow, hadCalendar := row.Fields["per"] != nil, row.Fields["calendar"] != nil
	algorithm := e.algorithmOf()
	per, calendar, zone := any(nil), any(nil), any(nil)
	switch {
	case window == ratelimit.InFlight.String():
		algorithm, err = window, nil
	case err == nil && rate.Calendar != ratelimit.NoCalendar:
		algorithm, calendar = ratelimit.FixedWindow.String(), calendarNames[rate.Calendar]
		if rate.Zone != "" {
			zone = rate.Zone
		}
	case err == nil:
		per, err = t.Value(&columns.Column{Name: a.name, Kind: columns.Duration}, []string{rate.Window.String()})
	}
	if err != nil {
		e.fail(wrong)
	}
	if isNew || hadWindow != (per != nil) || hadCalendar != (calendar != nil) {
		row.Fields["algorithm"] = algorithm
	}
	if per == nil {
		row.Fields["burst"] = nil
	}
	row.Fields["per"] = per
	row.Fields["calendar"] = calendar
	row.Fields["time_zone"] = zone
}

// algorithmOf is the algorithm of a new limit with a window: that of the other limits, if they have one.
func (e *edit) algorithmOf() string {
	algorithm := ""
	for i := range e.want.Rows[columns.Limits] {
		switch l := &e.want.Rows[columns.Limits][i]; {
		case l.Fields["per"] == nil:
		case algorithm == "":
			algorithm = l.Text("algorithm")
		case algorithm != l.Text("algorithm"):
			return ratelimit.SlidingWindow.String()
		}
	}
	return cmp.Or(algorithm, ratelimit.SlidingWindow.String())
}

// settable says which limits take a setting of all limits.
var settable = map[string]string{
	"algorithm": "a limit with a window, such as per_hour", "burst": "a limit with a window, such as per_hour",
	"on_exceed": "a limit that is not in_flight", "durable": "a limit, such as per_hour",
}

// setLimits sets a column of all limits of a rule that can have it. A month stays a fixed window, and in_flight what
// it is. It fails if no limit can.
func (e *edit) setLimits(a assignment) {
	c := columns.Tables[columns.Limits].Find(a.name)
	want := "one of " + strings.TrimSuffix(strings.Join(c.Choices, ", "), ", "+ratelimit.InFlight.String())
	switch {
	case a.name == "algorithm" && a.value == "": // there is nothing to go back to
		e.fail(&ratelimit.FieldError{Field: a.name, Want: want})
	case a.name == "algorithm" && a.value == ratelimit.InFlight.String():
		e.fail(&ratelimit.FieldError{Field: a.name, Value: a.value,
			Want: want + "; for requests that run at once, give in_flight=NUMBER"})
	}
	taken := false
	for i := range e.want.Rows[columns.Limits] {
		l := &e.want.Rows[columns.Limits][i]
		isInFlight, hasWindow := l.Text("algorithm") == ratelimit.InFlight.String(), l.Fields["per"] != nil
		if a.name == "on_exceed" && isInFlight || settable[a.name] == settable["burst"] && !hasWindow {
			continue
		}
		if a.name == "burst" && a.value != "" && !hasBurst(l) {
			e.fail(&ratelimit.FieldError{Field: a.name, Value: a.value, Want: fmt.Sprintf(
				"given with algorithm=token_bucket or algorithm=gcra: %s is a %s", l.Text("name"), l.Text("algorithm"))})
		}
		e.setColumn(columns.Limits, l, c, a.value, time.Time{})
		taken = true
	}
	value, err := parseValue(columns.Limits, c, a.value, time.Time{})
	e.fail(err)
	if !taken && a.value != "" && (value != c.Default || a.name == "algorithm") {
		e.fail(&ratelimit.FieldError{Field: a.name, Value: a.value, Want: "for a rule that has " + settable[a.name]})
	}
}

// hasBurst reports whether the algorithm of a limit knows bursts.
func hasBurst(l *policyfile.Row) bool {
	algorithm := l.Text("algorithm")
	return algorithm == ratelimit.TokenBucket.String() || algorithm == ratelimit.GCRA.String()
}

// calendarNames are the units in rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"", "day", "week", "month", "year"}

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

// makeChanges makes changes, and checks all rules once.
func (w *work) makeChanges(changes []policyfile.Difference) {
	rules := map[string]*policyfile.Difference{}
	for i := range changes {
		if c := &changes[i]; c.Table == columns.Limits || c.Table == columns.Rules {
			if rule := c.Rule(); rules[rule] == nil { // the rule itself comes first
				rules[rule] = c
			}
		}
	}
	// about is an error about a rule that changes; nil about others.
	about := func(rule string, err error) error {
		if c := rules[rule]; c != nil && err != nil {
			return err
		}
		return nil
	}
	unknown := w.unknownTiers()
	w.stillUsable(func(wrong policy.Wrong) error { return about(wrong.Rule, wrong.Err) }, func(w *work) {
		w.changeRows(changes)
		// The constraints would not name the rules.
		for _, rule := range sortedKeys(rules) {
			if w.err == nil {
				w.execute("SELECT rate_limit_complete($1)", rule)
				w.err = about(rule, w.err)
			}
		}
		for _, same := range list[struct {
			Rule, Other string
			Priority    int64
		}](w, `SELECT r.name, o.name, r.priority FROM rate_limit_rules r JOIN rate_limit_rules o ON o.family = r.family AND o.priority = r.priority AND o.name <> r.name
WHERE r.name = ANY ($1::text[]) ORDER BY r.name, o.name LIMIT 1`, sortedKeys(rules)) {
			w.fail(about(same.Rule, &ratelimit.FieldError{Field: "priority", Value: fmt.Sprint(same.Priority), Want: fmt.Sprintf("another than that of the rule %q, which is of the same family", same.Other)}))
		}
		w.execute("SET CONSTRAINTS ALL IMMEDIATE") // what waits for the end of the transaction is checked now
		now := w.unknownTiers()
		for _, rule := range sortedKeys(now) {
			if now[rule] != unknown[rule] {
				err := fmt.Errorf("tiers: %s: must be in rate_limit_tiers", now[rule])
				w.fail(about(rule, err))
				w.fail(fmt.Errorf("rule %q: %w", rule, err))
			}
		}
	})
}
