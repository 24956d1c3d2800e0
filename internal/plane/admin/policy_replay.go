package admin

import (
	"context"
	"slices"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
)

// changedLimits reads the limits of the rules that a plan has changed, in the transaction of the changes.
func (w *work) changedLimits(plan *PolicyPlan) {
	limiting := some[string](w, "SELECT name FROM rate_limit_rules WHERE action = $1 AND mode = 'enforce'", policy.Charge.String())
	plan.limits = map[string]*replayLimits{}
	for i := range plan.Changes {
		c := &plan.Changes[i]
		if c.Outcome == policyfile.Kept || c.Table < columns.Rules {
			continue
		}
		rule := c.Row.Values[0].(string)
		if plan.limits[rule] != nil || !slices.Contains(limiting, rule) {
			continue
		}
		if plan.limits[rule] = w.limitsOf(rule); w.err != nil {
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
