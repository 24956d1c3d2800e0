package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

var rulesSQL = "SELECT " + answerSQL(columns.Tables[columns.Rules].Columns, "r") + `, r.created_by, r.updated_at FROM rate_limit_rules r
ORDER BY CASE r.action WHEN 'exempt' THEN 1 WHEN 'block' THEN 2 ELSE 3 END, r.priority DESC, r.name`

var ruleLimitsSQL = "SELECT " + answerSQL(columns.Tables[columns.Limits].Columns, "l") + " FROM rate_limit_rule_limits l ORDER BY l.rule, l.per NULLS LAST, l.name"

// Rules returns all rules in the order in which proxies try them. Beside the columns of a rule, a row has its limits, as a
// []Row; the problems, as a []string: why proxies cannot use the rule, or one of its overrides, and what it should be; and the
// warnings about a rule that proxies use, but that may not mean what it says.
func (d *Database) Rules(ctx context.Context) ([]Row, error) {
	w := d.work(ctx)
	all := w.ask(rulesSQL)
	limits := map[string][]Row{}
	for _, l := range w.ask(ruleLimitsSQL) {
		rule := l.Text("rule")
		limits[rule] = append(limits[rule], l)
	}
	problems, warnings := w.findProblems()
	for i := range all {
		name := all[i].Text("name")
		all[i].Set("limits", append([]Row{}, limits[name]...))
		all[i].Set("problems", append([]string{}, problems[name]...))
		all[i].Set("warnings", append([]string{}, warnings[name]...))
	}
	return all, w.err
}

// findProblems finds out which rules cannot be used: as the proxies do, by compiling them, and
// by what proxies report. A proxy can have other problems, such as with a time zone that its
// machine does not know.
func (w *work) findProblems() (problems, warnings map[string][]string) {
	problems, warnings = map[string][]string{}, map[string][]string{}
	for _, wrong := range w.wrongRules() {
		text := wrong.Err.Error()
		if wrong.Override != "" {
			text = wrong.Override + ": " + text
		}
		problems[wrong.Rule] = append(problems[wrong.Rule], text)
	}
	found, err := w.RuleWarnings(w.ctx)
	w.fail(err)
	for _, f := range found {
		warnings[f.Rule] = append(warnings[f.Rule], f.Warning)
	}
	nodes, err := w.Nodes(w.ctx)
	w.fail(err)
	for _, node := range nodes {
		for _, problem := range node.Problems {
			// A problem begins with "rule NAME: " or "rule NAME, override …: ".
			problem = strings.TrimPrefix(problem, "rule ")
			if end := strings.IndexAny(problem, ":,"); end >= 0 && len(problems[problem[:end]]) == 0 {
				problems[problem[:end]] = []string{node.Node + ": " + strings.TrimLeft(problem[end:], ":, ")}
			}
		}
	}
	return problems, warnings
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
	if exists, err := d.HasPolicy(ctx); err != nil || !exists {
		return nil, err
	}
	return rows[RuleWarning](ctx, d, "SELECT rule, field, warning FROM rate_limit_rule_warnings ORDER BY rule, field")
}

// SetRuleMode turns a rule on (enforce), on trial (shadow) or off.
func (d *Database) SetRuleMode(ctx context.Context, name, mode string) error {
	return d.together(ctx, func(w *work) {
		w.oneRule(name, w.execute("SELECT FROM rate_limit_rules WHERE name = $1", name))
		w.stillUsable(ofRule(name), func(w *work) {
			w.set(SetRule, name, []string{"mode=" + mode}, true)
		})
	})
}

// Rename gives a rule or a tier another name, which all that refers to it then has. A rule begins new counters. kind is
// rule or tier.
func (d *Database) Rename(ctx context.Context, kind, name, to string) error {
	table, column := "rate_limit_rules", "name"
	if kind == "tier" {
		table, column = "rate_limit_tiers", "tier"
	}
	return withValue(d.together(ctx, func(w *work) {
		if name != to && !w.lacks("SELECT true FROM "+table+" WHERE "+column+" = $1", to) {
			w.fail(fmt.Errorf("%s: %q: must be a name that no %s has", kind, to, kind))
		}
		if w.execute("UPDATE "+table+" SET "+column+" = $2 WHERE "+column+" = $1", name, to) == 0 && w.err == nil {
			w.fail(w.missing(ctx, kind, name))
		}
	}), column, column, to)
}

// Delete deletes a rule with its limits and overrides, or a tier that nothing uses: the error names what uses it. The counters
// of a rule expire by themselves. kind is rule or tier.
func (d *Database) Delete(ctx context.Context, kind, name string) error {
	return d.one(ctx, kind, name, map[string]string{
		"rule": "SELECT rate_limit_delete_rule($1)",
		"tier": "SELECT rate_limit_delete_tier($1)",
	}[kind], name)
}

// one runs a statement that says whether it has found the rule or the tier of a name.
func (d *Database) one(ctx context.Context, kind, name, sql string, args ...any) error {
	return d.together(ctx, func(w *work) {
		if found := some[bool](w, sql, args...); w.err == nil && !found[0] {
			w.fail(w.missing(ctx, kind, name))
		}
	})
}

// amongSome lists the names that exist, at most 20, for the error about another name.
func amongSome(names []string) string {
	const most = 20
	if len(names) > most {
		names = append(names[:most:most], "...")
	}
	return "one of " + strings.Join(names, ", ")
}

// oneRule fails if a command has found no rule.
func (w *work) oneRule(name string, found int64) {
	if w.err == nil && found == 0 {
		w.fail(w.missing(w.ctx, "rule", name))
	}
}

// known are the questions for the names of a kind.
var known = map[string]string{
	"rule":  "SELECT name FROM rate_limit_rules ORDER BY name",
	"tier":  "SELECT tier FROM rate_limit_tiers ORDER BY rank, tier",
	"limit": "SELECT rule || '/' || name FROM rate_limit_rule_limits ORDER BY 1",
}

// missing is the error about a rule, a tier or a RULE/LIMIT that is not in the database.
func (d *Database) missing(ctx context.Context, kind, name string) error {
	about := fmt.Sprintf("%s: %q: ", kind, name)
	if kind == "limit" {
		about = name + ": no such limit: "
	}
	names, err := values[string](ctx, d, known[kind])
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return notFound(about + "there are no " + kind + "s")
	}
	return notFound(about + "must be " + amongSome(names))
}
