package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Rule is a rule with its limits. nil lists match everything.
type Rule struct {
	Name     string   `json:"name"`
	Family   *string  `json:"family"`
	Priority int64    `json:"priority"`
	Mode     string   `json:"mode"`
	Action   string   `json:"action"`
	Hosts    []string `json:"hosts"`
	Paths    []string `json:"paths"`
	Methods  []string `json:"methods"`
	Networks []string `json:"networks"`
	Tiers    []string `json:"tiers"`
	CountBy  []string `json:"count_by"`
	// WithoutHeader is for a header in CountBy that a request lacks: share or skip.
	WithoutHeader string `json:"without_header"`
	// ValidFrom and ValidUntil are nil for no bound.
	ValidFrom  *time.Time `json:"valid_from"`
	ValidUntil *time.Time `json:"valid_until"`
	Cost       int64      `json:"cost"`
	// Settle says what a request really cost; nil is Cost.
	Settle  *string `json:"settle"`
	Status  *int32  `json:"status"`
	Message *string `json:"message"`
	// RetryAfter is in seconds.
	RetryAfter *float64 `json:"retry_after"`
	// BanFor and BanWithin are in seconds. Proxies ban a sender for BanFor after BanAfter
	// refusals within BanWithin; nil is never.
	BanFor    *float64  `json:"ban_for"`
	BanAfter  *int64    `json:"ban_after"`
	BanWithin *float64  `json:"ban_within"`
	Comment   *string   `json:"comment"`
	CreatedBy string    `json:"created_by"`
	UpdatedAt time.Time `json:"updated_at"`

	Limits []RuleLimit `json:"limits" db:"-"`
	// Problems say why proxies cannot use the rule, or one of its overrides, and what it
	// should be.
	Problems []string `json:"problems" db:"-"`
	// Warnings are about a rule that proxies use, but that may not mean what it says.
	Warnings []string `json:"warnings" db:"-"`
}

// RuleLimit is a limit of a rule.
type RuleLimit struct {
	Rule      string `json:"-"`
	Name      string `json:"name"`
	Algorithm string `json:"algorithm"`
	// Events is nil for unlimited.
	Events *int64 `json:"events"`
	// Seconds is the window; nil for one on the calendar, and for in_flight.
	Seconds  *float64 `json:"seconds"`
	Calendar *string  `json:"calendar"`
	TimeZone *string  `json:"time_zone"`
	Burst    *int64   `json:"burst"`
	Durable  bool     `json:"durable"`
	OnExceed string   `json:"on_exceed"`
}

var rulesSQL = `SELECT name, family, priority, mode, action, hosts, paths, methods, networks::text[], tiers, count_by, without_header,
	` + beginSQL("lower(valid)") + `, ` + endSQL("upper(valid)") + `,
	cost, settle, status, message, extract(epoch FROM retry_after)::float8,
	extract(epoch FROM ban_for)::float8, ban_after, extract(epoch FROM ban_within)::float8, comment, created_by, updated_at
FROM rate_limit_rules ORDER BY CASE action WHEN 'exempt' THEN 1 WHEN 'block' THEN 2 ELSE 3 END, priority DESC, name`

const ruleLimitsSQL = `SELECT rule, name, algorithm, events, extract(epoch FROM per)::float8, calendar, time_zone, burst, durable, on_exceed
FROM rate_limit_rule_limits ORDER BY rule, per NULLS LAST, name`

// Rules returns all rules in the order in which proxies try them.
func (d *Database) Rules(ctx context.Context) ([]Rule, error) {
	w := d.work(ctx)
	all := list[Rule](w, rulesSQL)
	byName := map[string]*Rule{}
	for i := range all {
		byName[all[i].Name] = &all[i]
		all[i].Limits = []RuleLimit{}
		all[i].Problems = []string{}
		all[i].Warnings = []string{}
	}
	for _, l := range list[RuleLimit](w, ruleLimitsSQL) {
		if r := byName[l.Rule]; r != nil {
			r.Limits = append(r.Limits, l)
		}
	}
	w.findProblems(byName)
	return all, w.err
}

// findProblems finds out which rules cannot be used: as the proxies do, by compiling them, and
// by what proxies report. A proxy can have other problems, such as with a time zone that its
// machine does not know.
func (w *work) findProblems(rules map[string]*Rule) {
	for _, wrong := range w.wrongRules() {
		if r := rules[wrong.Rule]; r != nil {
			text := wrong.Err.Error()
			if wrong.Override != "" {
				text = wrong.Override + ": " + text
			}
			r.Problems = append(r.Problems, text)
		}
	}
	warnings, err := w.RuleWarnings(w.ctx)
	w.fail(err)
	for _, warning := range warnings {
		if r := rules[warning.Rule]; r != nil {
			r.Warnings = append(r.Warnings, warning.Warning)
		}
	}
	nodes, err := w.Nodes(w.ctx)
	w.fail(err)
	for _, node := range nodes {
		for _, problem := range node.Problems {
			// A problem begins with "rule NAME: " or "rule NAME, override …: ".
			problem = strings.TrimPrefix(problem, "rule ")
			end := strings.IndexAny(problem, ":,")
			if end < 0 {
				continue
			}
			text := strings.TrimLeft(problem[end:], ":, ")
			if r := rules[problem[:end]]; r != nil && len(r.Problems) == 0 {
				r.Problems = append(r.Problems, node.Node+": "+text)
			}
		}
	}
}

// RuleWarning is about a rule that proxies use, but that may not mean what it says: it names a tier that is not
// there, or a limit of it is 0.
type RuleWarning struct {
	Rule    string `json:"rule"`
	Field   string `json:"field"`
	Warning string `json:"warning"`
}

// RuleWarnings returns all of them, in the order of the rules. A database without a policy has none.
func (d *Database) RuleWarnings(ctx context.Context) ([]RuleWarning, error) {
	if !d.HasPolicy(ctx) {
		return nil, nil
	}
	return rows[RuleWarning](ctx, d, "SELECT rule, field, warning FROM rate_limit_rule_warnings ORDER BY rule, field")
}

// unknownTiers are the warnings about tiers that rules name and that are not in rate_limit_tiers, by rule.
func (w *work) unknownTiers() map[string]string {
	unknown := map[string]string{}
	for _, f := range list[struct{ Rule, Tiers string }](w, `SELECT r.name, string_agg(quote_literal(t), ', ' ORDER BY t) FROM rate_limit_rules r CROSS JOIN unnest(r.tiers) AS t
WHERE NOT EXISTS (SELECT FROM rate_limit_tiers k WHERE k.tier = t) GROUP BY r.name`) {
		unknown[f.Rule] = f.Tiers
	}
	return unknown
}

// RuleNames are the names of all rules, in their order.
func (d *Database) RuleNames(ctx context.Context) ([]string, error) {
	return values[string](ctx, d, "SELECT name FROM rate_limit_rules ORDER BY name")
}

// SetRuleMode turns a rule on (enforce), on trial (shadow) or off.
func (d *Database) SetRuleMode(ctx context.Context, name, mode string) error {
	return d.usably(ctx, name, func(w *work) {
		w.oneRule(name, w.execute("UPDATE rate_limit_rules SET mode = $2 WHERE name = $1", name, mode))
	})
}

// RenameRule gives a rule another name. Its limits and overrides go with it, and it keeps its counters
// and its history.
func (d *Database) RenameRule(ctx context.Context, name, to string) error {
	return d.rename(ctx, "rule", "rate_limit_rules", "name", name, to, d.noRule)
}

// DeleteRule deletes a rule with its limits and overrides. Its counters expire by themselves.
func (d *Database) DeleteRule(ctx context.Context, name string) error {
	return d.together(ctx, func(w *work) { w.oneRule(name, w.execute("DELETE FROM rate_limit_rules WHERE name = $1", name)) })
}

// amongSome is edge.Among for names of which there may be many.
func amongSome(name string, names []string) string {
	const most = 20
	question := edge.DidYouMean(name, names)
	if len(names) > most {
		names = append(names[:most:most], "…")
	}
	return "one of " + strings.Join(names, ", ") + question
}

// oneRule fails if a command has found no rule.
func (w *work) oneRule(name string, found int64) {
	if w.err == nil && found == 0 {
		w.fail(w.noRule(w.ctx, name))
	}
}

// noRule is the error about a rule that is not in the database.
func (d *Database) noRule(ctx context.Context, name string) error {
	names, err := d.RuleNames(ctx)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return notFound(fmt.Sprintf("rule: %q: there are no rules", name))
	}
	return notFound(fmt.Sprintf("rule: %q: must be %s", name, amongSome(name, names)))
}

// noLimit is the error about a RULE/LIMIT that is not in the database.
func (d *Database) noLimit(ctx context.Context, name string) error {
	limits, err := values[string](ctx, d, "SELECT rule || '/' || name FROM rate_limit_rule_limits ORDER BY 1")
	if err != nil {
		return err
	}
	if len(limits) == 0 {
		return notFound(name + ": no rule has a limit")
	}
	return notFound(name + ": no such limit: must be " + amongSome(name, limits))
}

// rename gives a row another name, which all that refers to it then has. kind is what the row is, and
// missing makes the error about a name that no row has.
func (d *Database) rename(ctx context.Context, kind, table, column, name, to string, missing func(context.Context, string) error) error {
	err := d.together(ctx, func(w *work) {
		if len(some[bool](w, "SELECT true FROM "+table+" WHERE "+column+" = $1", to)) > 0 {
			w.fail(&ratelimit.FieldError{Field: kind, Value: to, Want: "a name that no " + kind + " has"})
		}
		if w.execute("UPDATE "+table+" SET "+column+" = $2 WHERE "+column+" = $1", name, to) == 0 && w.err == nil {
			w.fail(missing(ctx, name))
		}
	})
	return withValue(err, column, column, to)
}

// RuleState is a rule with the name that its counters and the history have, and its mode. Valid is whether it holds now.
type RuleState struct {
	Name, Counter, Mode string
	Valid               bool
}

// RuleStates returns the rules. A database without a policy has none.
func (d *Database) RuleStates(ctx context.Context) ([]RuleState, error) {
	if exists, err := d.hasTable(ctx, "rate_limit_rules"); err != nil || !exists {
		return nil, err
	}
	return rows[RuleState](ctx, d, "SELECT r.name, coalesce(to_jsonb(r)->>'counter', r.name), r.mode, now() <@ r.valid FROM rate_limit_rules r")
}
