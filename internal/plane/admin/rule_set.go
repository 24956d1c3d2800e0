package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A setting of a rule is a parameter of the function rate_limit_rule, which checks it. What the
// function cannot do is here: taking a setting back, limits of any window, and unlimited ones.

// ruleSetting is a parameter of rate_limit_rule.
type ruleSetting struct {
	name string
	// kind is the type of the parameter.
	kind  string
	reset reset
	help  string
}

// reset is what an empty value does.
type reset uint8

const (
	noReset     reset = iota // there is nothing to go back to
	resetRule                // the column of the rule gets its default
	resetLimits              // the column of all limits of the rule gets its default
	resetWindow              // the limit of this name is deleted
)

// ruleSettings are all parameters, in the order of the documentation.
var ruleSettings = []ruleSetting{
	{"priority", "bigint", resetRule, "the order, highest first"},
	{"family", "text", resetRule, "of the rules of a family, the first that matches applies alone"},
	{"mode", "text", resetRule, "enforce, shadow or off"},
	{"action", "text", resetRule, "limit, block or exempt"},
	{"tiers", "text[]", resetRule, "tiers of users"},
	{"hosts", "text[]", resetRule, "hosts, as in api.example.com,*.example.org"},
	{"paths", "text[]", resetRule, "paths, as in /login,/api/v1/*"},
	{"methods", "text[]", resetRule, "methods, as in GET,POST"},
	{"networks", "cidr[]", resetRule, "networks of clients"},
	{"count_by", "text[]", resetRule, "what has a counter of its own: user, key, tier, ip, ip/64, host, route, header:NAME, all; or the first there is, as in user|ip"},
	{"without_header", "text", resetRule, "header:NAME for requests without it. share: they have one counter; skip: the rule does not match"},
	{"valid", "tstzrange", resetRule, "when it applies: FROM..UNTIL"},
	{"algorithm", "text", noReset, "sliding_window, fixed_window, token_bucket, sliding_log or gcra, of the limits with a window"},
	{"per_second", "bigint", resetWindow, "how much may pass; or unlimited"},
	{"per_minute", "bigint", resetWindow, "the same for a minute"},
	{"per_hour", "bigint", resetWindow, "the same for an hour"},
	{"per_day", "bigint", resetWindow, "the same for 24 hours"},
	{"per_month", "bigint", resetWindow, "the same for a month of the calendar, or of the user's billing period"},
	{"in_flight", "bigint", resetWindow, "how many requests may run at once"},
	{"burst", "bigint", resetLimits, "how much may pass at once; a token_bucket with less than its events is refilled evenly"},
	{"durable", "boolean", resetLimits, "true: counts survive a crash of the server"},
	{"on_exceed", "text", resetLimits, "refuse or overage"},
	{"cost", "bigint", resetRule, "what a request takes"},
	{"settle", "text", resetRule, "what it really cost: header NAME, bytes, json PATH, or as in status 401 403 = 1, else 0"},
	{"status", "int", resetRule, "the HTTP status of a refusal"},
	{"message", "text", resetRule, "the text of a refusal"},
	{"retry_after", "interval", resetRule, "the Retry-After of a refusal, as in 30s"},
	{"ban_for", "interval", resetRule, "how long proxies ban a sender whom the rule has refused often, as in 1h; empty: no bans"},
	{"ban_after", "bigint", resetRule, "after how many refusals"},
	{"ban_within", "interval", resetRule, "in which time, as in 10m"},
	{"comment", "text", resetRule, "for people"},
}

// limitPrefix begins the settings that are limits of any window.
const limitPrefix = "limit."

// banPrefix begins the settings of a ban. They are given together, so to take one back is to
// take all of them back.
const banPrefix = "ban_"

// Setting is the name of a setting and what it means.
type Setting struct{ Name, Help string }

// RuleSettings are the settings that SetRule knows.
func RuleSettings() []Setting {
	var all []Setting
	for _, s := range ruleSettings {
		all = append(all, Setting{s.name, s.help})
	}
	return append(all, Setting{limitPrefix + "NAME", "a limit of any window, as in 100/10s or 10000/1mo calendar Europe/Berlin; or of requests in flight, as in 5/in_flight"})
}

func settingNames(settings []Setting) []string {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	return names
}

// parameter is the value of a setting as the function takes it.
func (s *ruleSetting) parameter(text string) (any, error) {
	switch s.name {
	case "mode":
		_, err := policy.ParseMode(text)
		return text, err
	case "action":
		_, err := policy.ParseAction(text)
		return text, err
	case "algorithm":
		_, err := ratelimit.ParseAlgorithm(text)
		return text, err
	}
	if s.reset == resetWindow {
		return parseAmount(s.name, text)
	}
	switch s.kind {
	case "bigint", "int":
		return parseWhole(s.name, text)
	case "text[]":
		return parseList(s.name, text)
	case "cidr[]":
		return parseNetworks(s.name, text)
	case "tstzrange":
		return parseRange(s.name, text)
	case "interval":
		return parseDuration(s.name, text)
	case "boolean":
		if text != "true" && text != "false" {
			return nil, &ratelimit.FieldError{Field: s.name, Value: text, Want: "true or false"}
		}
		return text == "true", nil
	}
	return text, nil
}

// ruleChange is what SetRule is asked for.
type ruleChange struct {
	limits []ruleLimit // of any window, and unlimited ones
	resets [4][]string // the settings to take back, by reset
	names  []string    // parameters, with their types
	values []any
}

// SetRule makes a rule, or changes the settings that are named, each as name=value. An empty
// value takes a setting back to its default, and deletes a limit. It reports whether the rule
// is new.
func (d *Database) SetRule(ctx context.Context, name string, assignments []string) (isNew bool, err error) {
	change, err := parseRuleChange(assignments)
	if err != nil {
		return false, err
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
	s := &ruleSettings[slices.IndexFunc(ruleSettings, func(s ruleSetting) bool { return s.name == a.name })]
	switch {
	case a.value == "" && s.reset == noReset:
		return &ratelimit.FieldError{Field: s.name, Want: s.help}
	case a.value == "" && strings.HasPrefix(s.name, banPrefix):
		for _, other := range ruleSettings {
			if strings.HasPrefix(other.name, banPrefix) && !slices.Contains(c.resets[s.reset], other.name) {
				c.resets[s.reset] = append(c.resets[s.reset], other.name)
			}
		}
	case a.value == "":
		c.resets[s.reset] = append(c.resets[s.reset], s.name)
	case a.value == unlimited && s.reset == resetWindow:
		c.limits = append(c.limits, unlimitedPer(s.name))
	default:
		value, err := s.parameter(a.value)
		if err != nil {
			return err
		}
		c.names = append(c.names, s.name+" "+s.kind)
		c.values = append(c.values, value)
	}
	return nil
}
