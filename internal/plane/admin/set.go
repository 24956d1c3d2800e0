package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// burstSuffix ends a setting that is another burst of the limits of a rule.
const burstSuffix = ".burst"

// The tables whose rows Set changes.
const (
	Tiers = columns.Tiers
	Users = columns.Users
	Keys  = columns.Keys
)

// Setting is a column as a setting: its name and its values. docs/policy.md says what it means.
type Setting = columns.Column

// Settings are the settings of a table that Set knows. Those of limits are no columns.
func Settings(table int) []*Setting {
	t := &columns.Tables[table]
	all := t.Set()
	if table == columns.Users || table == columns.Keys {
		all = append(all, &Setting{Name: "RULE/LIMIT"}, &Setting{Name: "RULE" + burstSuffix})
	}
	return all
}

func namesOf(settings []*Setting) []string {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	return names
}

// assignment is name=value. An empty value takes the setting back.
type assignment struct{ name, value string }

// parseAssignments splits texts of the form name=value. known are the names that are allowed;
// isKnown allows others.
func parseAssignments(texts, known []string, isKnown func(name string) bool) ([]assignment, error) {
	var all []assignment
	seen := map[string]bool{}
	for _, text := range texts {
		name, value, found := strings.Cut(text, "=")
		if !found {
			return nil, fmt.Errorf("%q: must be name=value, where the name is one of %s", text, strings.Join(known, ", "))
		}
		if !isKnown(name) && !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: unknown: must be one of %s", name, strings.Join(known, ", "))
		}
		if seen[name] {
			return nil, fmt.Errorf("%s: must be given once; lists have commas, as in paths=/a/*,/b", name)
		}
		seen[name] = true
		all = append(all, assignment{name, value})
	}
	if len(all) == 0 {
		return nil, errors.New("nothing to set: give one or more of " + strings.Join(known, ", ") + ", each as name=value")
	}
	return all, nil
}

// edit is a change of some rows: as the database has them, and as they are wanted. The rows are locked.
type edit struct {
	*work
	have, want *policyfile.Content
}

// edit reads rows for a change: of tables, those for which conditions on their columns hold.
func (w *work) edit(id any, conditions map[int]string) *edit {
	have := &policyfile.Content{}
	for table := range columns.Count { // in the order in which other commands lock the rows
		if condition := conditions[table]; condition != "" {
			w.readRows(have, table, " WHERE "+condition+" FOR UPDATE OF t", id)
		}
	}
	return &edit{w, have, have.Clone()}
}

// changes are what makes the rows as they are wanted.
func (e *edit) changes() []policyfile.Difference { return policyfile.Diff(e.have, e.want) }

// rowKeys are the columns that name the rows that Set changes, and the columns of overrides for them.
var rowKeys = map[int]struct{ name, holder string }{
	columns.Tiers: {name: "tier"}, columns.Users: {"user_id", "user_id"}, columns.Keys: {"id", "key_id"},
}

// Set makes a tier or a user, or changes the settings of one or of an API key that are named, each as name=value. An empty
// value takes a setting back to its default, and deletes an override. A new tier needs no setting. id is the name, or the
// number of the key. Set reports whether the row is new.
func (d *Database) Set(ctx context.Context, table int, id any, texts []string) (isNew bool, err error) {
	key := rowKeys[table]
	var assignments []assignment
	if table != columns.Tiers || len(texts) > 0 {
		assignments, err = parseAssignments(texts, namesOf(Settings(table)), func(name string) bool {
			return key.holder != "" && (strings.Contains(name, "/") || strings.HasSuffix(name, burstSuffix))
		})
	}
	if err != nil {
		return false, err
	}
	now, err := d.Now(ctx)
	if err != nil {
		return false, err
	}
	err = d.together(ctx, func(w *work) {
		conditions := map[int]string{table: "t." + key.name + " = $1"}
		if key.holder != "" {
			conditions[columns.Overrides] = "t." + key.holder + " = $1 AND t.valid = '(,)'"
		}
		e := w.edit(id, conditions)
		isNew = e.setRow(table, id, assignments, now)
		w.changeRows(e.changes())
	})
	return isNew, err
}

// setRow sets columns and overrides of a row, which may be new.
func (e *edit) setRow(table int, id any, assignments []assignment, now time.Time) (isNew bool) {
	t := &columns.Tables[table]
	if number, isKey := id.(int64); isKey {
		if len(e.have.Rows[table]) == 0 {
			e.fail(noKey(number))
			return false
		}
		id = e.have.Rows[table][0].Text("digest")
	}
	row, isNew := e.want.Row(table, id)
	for _, a := range assignments {
		c := t.Find(a.name)
		if c == nil {
			e.setOverride(table, id.(string), a)
			continue
		}
		if a.value == "" && c.Needed {
			e.fail(&ratelimit.FieldError{Field: c.Name, Want: "given: only a setting with a default may be empty"})
		}
		e.setColumn(table, row, c, a.value, now)
	}
	for _, c := range t.Set() {
		if c.Needed && row.Fields[c.InFile()] == nil && e.err == nil {
			tiers, err := e.TierNames(e.ctx)
			e.fail(err)
			among := "given for a new user, one of " + strings.Join(tiers, ", ")
			e.fail(&ratelimit.FieldError{Field: c.Name, Want: among})
		}
	}
	return isNew
}

// setColumn sets a column of a row to the value that a text says.
func (e *edit) setColumn(table int, row *policyfile.Row, c *columns.Column, text string, now time.Time) {
	value, err := parseValue(table, c, text, now)
	e.fail(err)
	if tiers, isList := value.([]string); isList && c.Name == "tiers" {
		for _, tier := range tiers {
			e.fail(e.checkTier(e.ctx, c.Name, tier))
		}
	} else if c.Name == "tier" {
		e.fail(e.checkTier(e.ctx, c.Name, text))
	}
	row.Fields[c.InFile()] = value
}

// checkTier returns an error if there is no tier of this name. "" is no tier.
func (d *Database) checkTier(ctx context.Context, field, tier string) error {
	if tier == "" {
		return nil
	}
	tiers, err := d.TierNames(ctx)
	if err == nil && !slices.Contains(tiers, tier) {
		err = &ratelimit.FieldError{Field: field, Value: tier, Want: amongSome(tiers)}
	}
	return err
}

// setOverride makes, changes or deletes the always valid override of a limit for a user or for an API key; or, of
// RULE.burst, the burst of those of the limits of the rule that have one. A limit without an override gets one with the
// amount that it has, which keeps it when the rule changes.
func (e *edit) setOverride(table int, holder string, a assignment) {
	rule, limit, isAmount := strings.Cut(a.name, "/")
	c := columns.Column{Name: a.name, Kind: columns.Amount}
	if !isAmount {
		rule = strings.TrimSuffix(a.name, burstSuffix)
		c = columns.Column{Name: a.name, Kind: columns.Whole, Min: 1, Max: ratelimit.MaxEvents}
	}
	var all policyfile.Content
	e.readRows(&all, columns.Limits, " WHERE t.rule = $1 ORDER BY t.name", rule)
	value, err := parseValue(columns.Overrides, &c, a.value, time.Time{})
	found := false
	for i := range all.Rows[columns.Limits] {
		l := &all.Rows[columns.Limits][i]
		name := l.Text("name")
		if isAmount && name != limit || !isAmount && !hasBurst(l) {
			continue
		}
		found = true
		keys := []any{rule, name, nil, holder, nil, columns.Always}
		if table == columns.Keys {
			keys[3], keys[4] = nil, holder
		}
		row, isNew := e.want.Row(columns.Overrides, keys...)
		if isNew {
			row.Fields["events"] = l.Fields["events"]
		}
		switch {
		case a.value == "" && (isAmount || isNew):
			e.want.Delete(columns.Overrides, row)
		case isAmount:
			row.Fields["events"] = value
		default:
			row.Fields["burst"] = value
		}
	}
	if !found && isAmount && e.err == nil {
		e.fail(e.missing(e.ctx, "limit", a.name))
	} else if !found {
		e.fail(&ratelimit.FieldError{Field: a.name, Value: a.value, Want: "of a rule with a token_bucket or a gcra"})
	}
	e.fail(err)
}
