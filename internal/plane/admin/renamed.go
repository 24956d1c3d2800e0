package admin

import (
	"context"
	"strings"
)

// renamed are the rules that have another name in their counters and in the history than in the
// policy: by that name, and by their own.
type renamed struct{ byCounter, byName map[string]string }

// renamedRules reads them. A database without a policy has none.
func (d *Database) renamedRules(ctx context.Context) (renamed, error) {
	r := renamed{map[string]string{}, map[string]string{}}
	if d.policy != "" {
		at, err := d.atPolicy(ctx)
		if err != nil {
			return r, err
		}
		return at.renamedRules(ctx)
	}
	if exists, err := d.hasTable(ctx, "rate_limit_rules"); err != nil || !exists {
		return r, err
	}
	found, err := rows[struct{ Name, Counter string }](ctx, d, "SELECT name, counter FROM rate_limit_rules WHERE counter <> name")
	for _, rule := range found {
		r.byCounter[rule.Counter], r.byName[rule.Name] = rule.Name, rule.Counter
	}
	return r, err
}

// stored is the prefix that the tables have in place of one with the name of a rule.
func (r *renamed) stored(prefix string) string { return exchange(r.byName, prefix) }

// shown is the prefix with the name of the rule in place of one that the tables have.
func (r *renamed) shown(prefix string) string { return exchange(r.byCounter, prefix) }

// exchange exchanges the name in a prefix rule/NAME or rule/NAME/LIMIT.
func exchange(names map[string]string, prefix string) string {
	rest, isRule := strings.CutPrefix(prefix, rulePrefix)
	name, limit, _ := strings.Cut(rest, "/")
	other, known := names[name]
	if !isRule || !known {
		return prefix
	}
	if len(name) < len(rest) {
		other += "/" + limit
	}
	return rulePrefix + other
}

// show exchanges the names in rows of the audit log.
func (r *renamed) show(all []Audited) {
	for i := range all {
		all[i].Prefix = r.shown(all[i].Prefix)
		for j := 0; j < len(all[i].Also); j += 2 {
			all[i].Also[j] = r.shown(all[i].Also[j])
		}
	}
}
