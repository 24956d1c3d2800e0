package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// PolicyOptions say how a file becomes the policy.
type PolicyOptions struct {
	// Users: the file may have users, keys, and overrides for them.
	Users bool
	// Prune deletes what the file does not name, in the sections that it has.
	Prune bool
	// Expect is the PolicyPlan.Expect that the changes must have; "" is any.
	Expect string
	// DryRun makes the changes and takes them back.
	DryRun bool
	// Replay replays the requests of a period with the limits of the file.
	Replay *Period
}

// PolicyPlan says what a file changes.
type PolicyPlan struct {
	Changes []policyfile.Difference `json:"changes"`
	// Expect names these changes: other changes have another one.
	Expect string `json:"expect"`
	// Replays are those of the rules whose limits may change.
	Replays []PolicyReplay `json:"replays,omitempty"`

	limits map[string]*replayLimits
}

// PolicyReplay is what the limits of a file would have done to the recorded requests of a rule.
type PolicyReplay struct {
	Rule   string  `json:"rule"`
	Replay *Replay `json:"replay"`
	// Problem says why the replay says nothing, or "".
	Problem string `json:"problem"`
}

// ExportPolicy returns the policy in the database, and the tiers that rules name and that are missing.
func (d *Database) ExportPolicy(ctx context.Context, users bool) (found *policyfile.Content, unknownTiers map[string]string, err error) {
	err = d.atOnce(ctx, func() error {
		if found, err = d.readPolicy(ctx, users); err != nil {
			return err
		}
		unknownTiers, err = d.unknownTiers(ctx)
		return err
	})
	return found, unknownTiers, err
}

// DiffPolicy returns what ApplyPolicy would change now.
func (d *Database) DiffPolicy(ctx context.Context, want *policyfile.Content, o *PolicyOptions) (plan *PolicyPlan, err error) {
	err = d.atOnce(ctx, func() error {
		plan, err = d.planPolicy(ctx, want, o)
		return err
	})
	return plan, err
}

// atOnce runs queries that see one state of the database.
func (d *Database) atOnce(ctx context.Context, queries func() error) error {
	tx, err := d.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return d.failure(err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // it has changed nothing
	return queries()
}

// ApplyPolicy makes the policy as a file has it, in one transaction. Other sessions change nothing of the
// policy from when it finds out what differs until its end, so the plan is what it does.
func (d *Database) ApplyPolicy(ctx context.Context, want *policyfile.Content, o *PolicyOptions) (plan *PolicyPlan, err error) {
	in := d.together
	if o.DryRun {
		in = d.undone
	}
	err = in(ctx, func() error {
		// The order is that in which other commands lock the tables.
		var names []string
		for i := range policyfile.Tables {
			if t := &policyfile.Tables[i]; o.Users || !t.Users {
				names = append(names, t.Name)
			}
		}
		if _, err := d.execute(ctx, "LOCK TABLE "+strings.Join(names, ", ")+" IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
		if plan, err = d.planPolicy(ctx, want, o); err != nil {
			return err
		}
		if o.Expect != "" && o.Expect != plan.Expect {
			return &ratelimit.FieldError{Field: "--expect", Value: o.Expect, Want: plan.Expect + ": the file or the database has changed since that diff; look at: policy diff"}
		}
		if err := d.makeChanges(ctx, plan); err != nil || o.Replay == nil {
			return err
		}
		return d.changedLimits(ctx, plan)
	})
	if err != nil || o.Replay == nil {
		return plan, err
	}
	return plan, d.replayPlan(ctx, plan, *o.Replay)
}

// planPolicy compares the file with the database.
func (d *Database) planPolicy(ctx context.Context, want *policyfile.Content, o *PolicyOptions) (*PolicyPlan, error) {
	if err := withoutUsers(want, o.Users); err != nil {
		return nil, err
	}
	have, err := d.readPolicy(ctx, o.Users)
	if err != nil {
		return nil, err
	}
	plan := &PolicyPlan{Changes: policyfile.Diff(have, want, o.Prune)}
	plan.Expect, err = policyfile.Fingerprint(plan.Changes)
	return plan, err
}

// withoutUsers returns an error if a file has users or keys that it may not have.
func withoutUsers(want *policyfile.Content, users bool) error {
	if users {
		return nil
	}
	for i := range policyfile.Tables {
		if t := &policyfile.Tables[i]; t.Users && want.Has[i] {
			return fmt.Errorf("%s: must be left out without --users", t.Section)
		}
	}
	t := &policyfile.Tables[columns.Overrides]
	for i := range want.Rows[columns.Overrides] {
		if r := &want.Rows[columns.Overrides][i]; t.Text(r, "user")+t.Text(r, "key") != "" {
			return t.About(r, errors.New("must be for a tier without --users"))
		}
	}
	return nil
}

// readPolicy reads the rows of the policy.
func (d *Database) readPolicy(ctx context.Context, users bool) (*policyfile.Content, error) {
	found := &policyfile.Content{}
	for i := range policyfile.Tables {
		t := &policyfile.Tables[i]
		if t.Users && !users {
			continue
		}
		found.Has[i] = true
		sql := readRowsSQL(t)
		if i == columns.Overrides && !users {
			sql += " WHERE t.tier IS NOT NULL"
		}
		texts, err := values[string](ctx, d, sql)
		if err != nil {
			return nil, err
		}
		for _, text := range texts {
			var row []any
			if err := json.Unmarshal([]byte(text), &row); err != nil {
				return nil, err
			}
			if err := found.AddRow(i, row); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// makeChanges makes the changes of a plan, in the transaction of the caller, and checks all rules once.
func (d *Database) makeChanges(ctx context.Context, plan *PolicyPlan) error {
	rules := map[string]*policyfile.Difference{}
	for i := range plan.Changes {
		if c := &plan.Changes[i]; c.Outcome != policyfile.Kept && (c.Table == columns.Limits || c.Table == columns.Rules) {
			if rule := c.Row.Values[0].(string); rules[rule] == nil { // the rule itself comes first
				rules[rule] = c
			}
		}
	}
	unknown, err := d.unknownTiers(ctx)
	if err != nil {
		return err
	}
	own := func(w policy.Wrong) error {
		if c := rules[w.Rule]; c != nil {
			return policyfile.Tables[c.Table].About(c.Row, w.Err)
		}
		return nil
	}
	return d.stillUsable(ctx, own, func() error {
		if err := d.changeRows(ctx, plan.Changes); err != nil {
			return err
		}
		if err := d.differentPriorities(ctx, rules); err != nil {
			return err
		}
		// What waits for the end of the transaction is checked now.
		if _, err := d.execute(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			return err
		}
		now, err := d.unknownTiers(ctx)
		for _, rule := range sortedKeys(now) {
			if now[rule] == unknown[rule] {
				continue
			}
			err := fmt.Errorf("tiers: %s: must be in the section tiers, or in rate_limit_tiers", now[rule])
			if c := rules[rule]; c != nil {
				return policyfile.Tables[c.Table].About(c.Row, err)
			}
			return fmt.Errorf("rule %q: %w", rule, err)
		}
		return err
	})
}

// differentPriorities returns an error if a rule of a file, which has changed, has the family and the priority of another
// rule. The constraint would not name them.
func (d *Database) differentPriorities(ctx context.Context, changed map[string]*policyfile.Difference) error {
	same, err := row[struct {
		Rule, Other string
		Priority    int64
	}](ctx, d, `SELECT r.name, o.name, r.priority FROM rate_limit_rules r JOIN rate_limit_rules o ON o.family = r.family AND o.priority = r.priority AND o.name <> r.name
WHERE r.name = ANY ($1::text[]) ORDER BY r.name, o.name LIMIT 1`, sortedKeys(changed))
	if err != nil || same == nil {
		return err
	}
	c := changed[same.Rule]
	return policyfile.Tables[c.Table].About(c.Row, &ratelimit.FieldError{Field: "priority", Value: fmt.Sprint(same.Priority), Want: fmt.Sprintf("another than that of the rule %q, which is of the same family", same.Other)})
}

// changeRows makes changes. An override and its limit must suit each other after each statement, so
// an override that changes has no amount in between.
func (d *Database) changeRows(ctx context.Context, changes []policyfile.Difference) error {
	if _, err := d.execute(ctx, "SET CONSTRAINTS ALL DEFERRED"); err != nil {
		return err
	}
	rows := func(table int, outcomes ...string) []*policyfile.Row {
		var all []*policyfile.Row
		for i := range changes {
			if c := &changes[i]; c.Table == table && slices.Contains(outcomes, c.Outcome) {
				all = append(all, c.Row)
			}
		}
		return all
	}
	overrides := &policyfile.Tables[columns.Overrides]
	if err := d.onRows(ctx, overrides, deleteRowsSQL(overrides), rows(columns.Overrides, policyfile.Deleted)); err != nil {
		return err
	}
	if err := d.onRows(ctx, overrides, bareRowsSQL(overrides), rows(columns.Overrides, policyfile.Changed)); err != nil {
		return err
	}
	for i := range policyfile.Tables {
		t := &policyfile.Tables[i]
		if err := d.onRows(ctx, t, insertRowsSQL(t), rows(i, policyfile.Created)); err != nil {
			return err
		}
		changed := []string{policyfile.Changed}
		if slices.ContainsFunc(t.Columns, func(c columns.Column) bool { return c.Late }) {
			changed = append(changed, policyfile.Created)
		}
		if err := d.onRows(ctx, t, updateRowsSQL(t), rows(i, changed...)); err != nil {
			return err
		}
	}
	for i := len(policyfile.Tables) - 1; i >= 0; i-- {
		t := &policyfile.Tables[i]
		if i == columns.Overrides {
			continue
		}
		if err := d.onRows(ctx, t, deleteRowsSQL(t), rows(i, policyfile.Deleted)); err != nil {
			return err
		}
	}
	return nil
}

// mostRows bounds the rows of a statement. More than 1,000 rows are one line in the log of changes.
const mostRows = 5000

// onRows runs a statement on rows. If the server refuses a row, it finds out which one, in halves, and
// the error names the row. The transaction then cannot be committed.
func (d *Database) onRows(ctx context.Context, t *policyfile.Table, sql string, rows []*policyfile.Row) error {
	for ; len(rows) > mostRows; rows = rows[mostRows:] {
		if err := d.onRows(ctx, t, sql, rows[:mostRows]); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return nil
	}
	values := make([][]any, len(rows))
	for i, r := range rows {
		values[i] = r.Values
	}
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	if _, err := d.execute(ctx, "SAVEPOINT rows"); err != nil {
		return err
	}
	_, refused := d.execute(ctx, sql, string(text))
	var locked *lockError
	switch {
	case refused == nil:
		_, err := d.execute(ctx, "RELEASE SAVEPOINT rows")
		return err
	case errors.As(refused, &locked) || errors.Is(refused, errDeadlock) || d.conn.IsClosed():
		return refused
	case len(rows) == 1:
		return t.About(rows[0], aboutField(refused, t, rows[0]))
	}
	if _, err := d.execute(ctx, "ROLLBACK TO SAVEPOINT rows"); err != nil {
		return errors.Join(refused, err)
	}
	half := len(rows) / 2
	if err := d.onRows(ctx, t, sql, rows[:half]); err != nil {
		return err
	}
	if err := d.onRows(ctx, t, sql, rows[half:]); err != nil {
		return err
	}
	return refused
}

// aboutField is an error that names the field of a row and its value, if the error is that of a
// constraint on it.
func aboutField(err error, t *policyfile.Table, r *policyfile.Row) error {
	var broken *constraintError
	if !errors.As(err, &broken) {
		return err
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		want, isAbout := strings.CutPrefix(broken.name, c.Name+"_must_")
		if !isAbout {
			continue
		}
		value, isText := r.Values[i].(string)
		if list, isList := r.Values[i].([]string); isList {
			value, isText = strings.Join(list, ", "), true
		}
		if isText {
			return fmt.Errorf("%s: %q: must %s", c.InFile(), value, strings.ReplaceAll(want, "_", " "))
		}
	}
	return err
}
