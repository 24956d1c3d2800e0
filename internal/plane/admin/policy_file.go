package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	err = d.atOnce(ctx, func(w *work) {
		found = w.readPolicy(users)
		unknownTiers = w.unknownTiers()
	})
	return found, unknownTiers, err
}

// DiffPolicy returns what ApplyPolicy would change now.
func (d *Database) DiffPolicy(ctx context.Context, want *policyfile.Content, o *PolicyOptions) (plan *PolicyPlan, err error) {
	err = d.atOnce(ctx, func(w *work) { plan = w.planPolicy(want, o) })
	return plan, err
}

// atOnce runs queries that see one state of the database.
func (d *Database) atOnce(ctx context.Context, queries func(w *work)) error {
	return d.undone(ctx, func(w *work) {
		w.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
		queries(w)
	})
}

// ApplyPolicy makes the policy as a file has it, in one transaction. Other sessions change nothing of the
// policy from when it finds out what differs until its end, so the plan is what it does.
func (d *Database) ApplyPolicy(ctx context.Context, want *policyfile.Content, o *PolicyOptions) (plan *PolicyPlan, err error) {
	in := d.together
	if o.DryRun {
		in = d.undone
	}
	err = in(ctx, func(w *work) {
		// The order is that in which other commands lock the tables.
		var names []string
		for i := range policyfile.Tables {
			if t := &policyfile.Tables[i]; o.Users || !t.Users {
				names = append(names, t.Name)
			}
		}
		w.execute("LOCK TABLE " + strings.Join(names, ", ") + " IN SHARE ROW EXCLUSIVE MODE")
		plan = w.planPolicy(want, o)
		if o.Expect != "" && o.Expect != plan.Expect {
			w.fail(&ratelimit.FieldError{Field: "--expect", Value: o.Expect, Want: plan.Expect + ": the file or the database has changed since that diff; look at: policy diff"})
		}
		if w.makeChanges(plan.Changes, (*policyfile.Table).About); o.Replay != nil {
			w.changedLimits(plan, o.Replay.From)
		}
	})
	if err != nil || o.Replay == nil {
		return plan, err
	}
	return plan, d.replayPlan(ctx, plan, *o.Replay)
}

// planPolicy compares the file with the database.
func (w *work) planPolicy(want *policyfile.Content, o *PolicyOptions) *PolicyPlan {
	w.fail(withoutUsers(want, o.Users))
	plan := &PolicyPlan{Changes: policyfile.Diff(w.readPolicy(o.Users), want, o.Prune)}
	var err error
	plan.Expect, err = policyfile.Fingerprint(plan.Changes)
	w.fail(err)
	return plan
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
		if r := &want.Rows[columns.Overrides][i]; r.Text("user")+r.Text("key") != "" {
			return t.About(r, errors.New("must be for a tier without --users"))
		}
	}
	return nil
}

// readPolicy reads the rows of the policy.
func (w *work) readPolicy(users bool) *policyfile.Content {
	found := &policyfile.Content{}
	for table := range policyfile.Tables {
		switch {
		case users:
			w.readRows(found, table, "")
		case table == columns.Overrides:
			w.readRows(found, table, " WHERE t.tier IS NOT NULL")
		case !policyfile.Tables[table].Users:
			w.readRows(found, table, "")
		}
	}
	return found
}

// makeChanges makes changes, and checks all rules once.
func (w *work) makeChanges(changes []policyfile.Difference, blame blame) {
	rules := map[string]*policyfile.Difference{}
	for i := range changes {
		if c := &changes[i]; c.Outcome != policyfile.Kept && (c.Table == columns.Limits || c.Table == columns.Rules) {
			if rule := c.Rule(); rules[rule] == nil { // the rule itself comes first
				rules[rule] = c
			}
		}
	}
	// about is an error about a rule that changes; nil about others.
	about := func(rule string, err error) error {
		if c := rules[rule]; c != nil && err != nil {
			return blame(&policyfile.Tables[c.Table], c.Row, err)
		}
		return nil
	}
	unknown := w.unknownTiers()
	w.stillUsable(func(wrong policy.Wrong) error { return about(wrong.Rule, wrong.Err) }, func(w *work) {
		w.changeRows(changes, blame)
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
				err := fmt.Errorf("tiers: %s: must be in the section tiers, or in rate_limit_tiers", now[rule])
				w.fail(about(rule, err))
				w.fail(fmt.Errorf("rule %q: %w", rule, err))
			}
		}
	})
}

// changedLimits reads the limits of the rules that a plan has changed, in the transaction of the changes.
func (w *work) changedLimits(plan *PolicyPlan, from time.Time) {
	limiting := some[string](w, "SELECT name FROM rate_limit_rules WHERE action = $1 AND mode = 'enforce'", policy.Charge.String())
	plan.limits = map[string]*replayLimits{}
	for i := range plan.Changes {
		c := &plan.Changes[i]
		if c.Outcome == policyfile.Kept || c.Table < columns.Rules {
			continue
		}
		rule := c.Rule()
		if plan.limits[rule] != nil || !slices.Contains(limiting, rule) {
			continue
		}
		if plan.limits[rule] = w.limitsOf(rule, from); w.err != nil {
			return
		}
		// Otherwise a request costs what it did.
		plan.limits[rule].costIsSet = c.Table == columns.Rules && c.Before["cost"] != c.After["cost"]
		plan.Replays = append(plan.Replays, PolicyReplay{Rule: rule})
	}
}

// mostReplayed bounds Replay.Changed of each rule.
const mostReplayed = 10

// replayPlan replays the recorded requests of the rules of a plan.
func (d *Database) replayPlan(ctx context.Context, plan *PolicyPlan, period Period) error {
	for i := range plan.Replays {
		r := &plan.Replays[i]
		q := &ReplayQuery{Period: period, Rule: r.Rule, Most: mostReplayed}
		t, err := d.replay(ctx, q, plan.limits[r.Rule])
		if err != nil {
			return err
		}
		if err := t.check(q); err != nil {
			r.Problem = err.Error()
		} else {
			r.Replay = &t.replay
		}
	}
	return nil
}
