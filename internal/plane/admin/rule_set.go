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

// A setting of a rule is a parameter of the function rate_limit_rule, which checks it: a column of the rule or of its
// limits, or the amount of a limit with a window that its name says. What the function cannot do is here: taking a
// setting back, limits of any window, and unlimited ones.

// ruleSetting is a parameter of rate_limit_rule.
type ruleSetting struct {
	*columns.Column
	reset reset
}

// reset is what an empty value does.
type reset uint8

const (
	noReset     reset = iota // there is nothing to go back to
	resetRule                // the column of the rule gets its default
	resetLimits              // the column of all limits of the rule gets its default
	resetWindow              // the limit of this name is deleted
)

// amounts are the settings that are amounts of limits.
var amounts = []columns.Column{
	{Name: "per_second", Kind: columns.Amount, Help: "how much may pass; or unlimited"},
	{Name: "per_minute", Kind: columns.Amount, Help: "the same for a minute"},
	{Name: "per_hour", Kind: columns.Amount, Help: "the same for an hour"},
	{Name: "per_day", Kind: columns.Amount, Help: "the same for 24 hours"},
	{Name: "per_month", Kind: columns.Amount, Help: "the same for a month of the calendar, or of the user's billing period"},
	{Name: "in_flight", Kind: columns.Amount, Help: "how many requests may run at once"},
}

// ruleSettings are all parameters.
var ruleSettings = func() (all []ruleSetting) {
	for _, c := range columns.Tables[columns.Rules].Set() {
		all = append(all, ruleSetting{c, resetRule})
	}
	for i := range amounts {
		all = append(all, ruleSetting{&amounts[i], resetWindow})
	}
	for _, c := range columns.Tables[columns.Limits].Set() {
		back := resetLimits
		if c.Name == "algorithm" {
			back = noReset
		}
		all = append(all, ruleSetting{c, back})
	}
	return all
}()

// limitPrefix begins the settings that are limits of any window.
const limitPrefix = "limit."

// banPrefix begins the settings of a ban. They are given together, so to take one back is to
// take all of them back.
const banPrefix = "ban_"

// Setting is the name of a setting, what it means, and its values, if there are few.
type Setting struct {
	Name, Help string
	Values     []string
}

// settingOf is a column as a setting.
func settingOf(c *columns.Column) Setting {
	s := Setting{c.Name, c.Help, c.Choices}
	switch {
	case c.Kind == columns.Flag:
		s.Values = []string{"true", "false"}
	case c.Name == "count_by":
		s.Values = []string{"user", "key", "tier", "ip", "ip/64", "host", "route", "header:", "all"}
	}
	return s
}

// RuleSettings are the settings that SetRule knows.
func RuleSettings() []Setting {
	var all []Setting
	for _, s := range ruleSettings {
		all = append(all, settingOf(s.Column))
	}
	return append(all, Setting{Name: limitPrefix + "NAME", Help: "a limit of any window, as in 100/10s or 10000/1mo calendar Europe/Berlin; or of requests in flight, as in 5/in_flight"})
}

func settingNames(settings []Setting) []string {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	return names
}

// ruleChange is what SetRule is asked for.
type ruleChange struct {
	limits []ruleLimit // of any window, and unlimited ones
	resets [4][]string // the settings to take back, by reset
	names  []string    // parameters, with their types
	values []any
	zero   string // a setting that lets nothing pass, or ""
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
	defer func() { err = withValue(err, assignments) }()
	err = d.usably(ctx, name, func() error {
		isNew, err = d.changeRule(ctx, name, &change)
		return err
	})
	return isNew, err
}

// changeRule makes or changes a rule, in the transaction of the caller.
func (d *Database) changeRule(ctx context.Context, name string, change *ruleChange) (isNew bool, err error) {
	// Commands that change one rule at the same time take the locks in one order.
	inserted := int64(0)
	if len(change.limits) > 0 {
		// The limits refer to the rule.
		if inserted, err = d.execute(ctx, "INSERT INTO rate_limit_rules (name) VALUES ($1) ON CONFLICT ON CONSTRAINT rate_limit_rules_pkey DO NOTHING", name); err != nil {
			return false, err
		}
	}
	if _, err := d.execute(ctx, "SELECT FROM rate_limit_rules WHERE name = $1 FOR UPDATE", name); err != nil {
		return false, err
	}
	if err := d.resetRule(ctx, name, change); err != nil {
		return false, err
	}
	for _, l := range change.limits {
		if err := d.setLimit(ctx, name, l); err != nil {
			return false, err
		}
	}
	// The function also checks what the constraints cannot see.
	sql := "SELECT rate_limit_rule($1::text"
	for i, parameter := range change.names {
		setting, kind, _ := strings.Cut(parameter, " ")
		sql += fmt.Sprintf(", %s => $%d::%s", setting, i+2, kind)
	}
	done, err := value[string](ctx, d, sql+")", append([]any{name}, change.values...)...)
	return err == nil && (inserted > 0 || *done == created), err
}

// usably runs commands that change a rule in one transaction, and refuses the change if proxies
// could then not use the rule, or another rule that they can use now.
func (d *Database) usably(ctx context.Context, name string, commands func() error) error {
	return d.together(ctx, func() error {
		return d.stillUsable(ctx, func(w policy.Wrong) error {
			if w.Rule == name {
				return w.Err
			}
			return nil
		}, commands)
	})
}

// stillUsable runs commands that change rules, in the transaction of the caller. It fails if proxies
// could then not use one of these rules, for which own returns an error, or another rule that they can
// use now.
func (d *Database) stillUsable(ctx context.Context, own func(policy.Wrong) error, commands func() error) error {
	before, err := d.wrongRules(ctx)
	if err != nil {
		return err
	}
	was := map[string]bool{}
	for _, w := range before {
		was[w.Rule] = was[w.Rule] || w.Override == ""
	}
	if err := commands(); err != nil {
		return err
	}
	after, err := d.wrongRules(ctx)
	if err != nil {
		return err
	}
	for _, w := range after {
		if w.Override != "" {
			continue
		}
		if err := own(w); err != nil {
			return err
		}
		if !was[w.Rule] {
			err = fmt.Errorf("the rule %q could no longer be used: %w", w.Rule, w.Err)
		}
	}
	return err
}

// wrongRules says which rules and overrides proxies cannot use, and why: by compiling them as proxies do.
func (d *Database) wrongRules(ctx context.Context) ([]policy.Wrong, error) {
	found, err := rows[struct{ Part, Name, Text string }](ctx, d, policy.RulesSQL())
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, r := range found {
		texts = append(texts, r.Part, r.Name, r.Text)
	}
	rules, overrides, err := policy.DecodeRules(texts)
	if err != nil {
		return nil, err
	}
	return policy.Compile(rules, overrides, nil, policyOptions).Wrong(), nil
}

// resetRule takes settings back: those of one row together, since constraints can be about
// several.
func (d *Database) resetRule(ctx context.Context, name string, change *ruleChange) error {
	for kind, settings := range change.resets {
		if len(settings) == 0 {
			continue
		}
		sql, args := "", []any{name}
		switch reset(kind) {
		case resetRule:
			sql = "UPDATE rate_limit_rules SET " + strings.Join(settings, " = DEFAULT, ") + " = DEFAULT WHERE name = $1"
		case resetLimits:
			sql = "UPDATE rate_limit_rule_limits SET " + strings.Join(settings, " = DEFAULT, ") + " = DEFAULT WHERE rule = $1"
		default:
			sql = "DELETE FROM rate_limit_rule_limits WHERE rule = $1 AND name = ANY ($2::text[])"
			args = append(args, settings)
		}
		if _, err := d.execute(ctx, sql, args...); err != nil {
			return err
		}
	}
	return nil
}

func parseRuleChange(texts []string) (ruleChange, error) {
	var change ruleChange
	assignments, err := parseAssignments(texts, settingNames(RuleSettings()), func(name string) bool {
		return strings.HasPrefix(name, limitPrefix) && len(name) > len(limitPrefix)
	})
	if err != nil {
		return change, err
	}
	for _, a := range assignments {
		if limit, isLimit := strings.CutPrefix(a.name, limitPrefix); isLimit {
			l, err := parseRuleLimit(a.name, limit, a.value)
			if err != nil {
				return change, err
			}
			change.limits = append(change.limits, l)
			if l.events != nil && *l.events == 0 {
				change.zero = a.name
			}
			continue
		}
		if err := change.addSetting(a); err != nil {
			return change, err
		}
	}
	return change, nil
}

// addSetting adds the assignment of a ruleSetting.
func (c *ruleChange) addSetting(a assignment) error {
	s := &ruleSettings[slices.IndexFunc(ruleSettings, func(s ruleSetting) bool { return s.Name == a.name })]
	switch {
	case a.value == "" && s.reset == noReset:
		return &ratelimit.FieldError{Field: s.Name, Want: s.Help}
	case a.value == "" && strings.HasPrefix(s.Name, banPrefix):
		for _, other := range ruleSettings {
			if strings.HasPrefix(other.Name, banPrefix) && !slices.Contains(c.resets[s.reset], other.Name) {
				c.resets[s.reset] = append(c.resets[s.reset], other.Name)
			}
		}
	case a.value == "":
		c.resets[s.reset] = append(c.resets[s.reset], s.Name)
	case a.value == unlimited && s.reset == resetWindow:
		c.limits = append(c.limits, unlimitedPer(s.Name))
	default:
		value, err := parameter(s.Column, a.value, time.Time{})
		if err != nil {
			return err
		}
		if amount, isAmount := value.(*int64); isAmount && *amount == 0 {
			c.zero = s.Name
		}
		c.names = append(c.names, s.Name+" "+s.Kind.SQL())
		c.values = append(c.values, value)
	}
	return nil
}
