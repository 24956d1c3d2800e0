package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// PolicyOptions say how a document becomes the policy.
type PolicyOptions struct {
	// Prune deletes what the document does not name, in the sections that it has.
	Prune bool
	// Expect is the PolicyPlan.Expect that the changes must have; "" is any.
	Expect string
	// DryRun makes the changes and takes them back.
	DryRun bool
	// Replay replays the requests of a period with the limits of the document.
	Replay *Period
}

// PolicyPlan says what a document changes.
type PolicyPlan struct {
	// Changes are rows of rate_limit_apply.
	Changes []Row `json:"changes"`
	// Expect names these changes: other changes have another one.
	Expect string `json:"expect"`
	// Replays are those of the rules whose limits may change.
	Replays []PolicyReplay `json:"replays,omitempty"`
}

// PolicyReplay is what the limits of a document would have done to the recorded requests of a rule.
type PolicyReplay struct {
	Rule   string  `json:"rule"`
	Replay *Replay `json:"replay"`
	// Problem says why the replay says nothing, or "".
	Problem string `json:"problem"`

	limits *replayLimits
}

// ApplyPolicy makes the policy as a document of JSON has it, see rate_limit_apply, in one transaction. It refuses rules that
// proxies could not use.
func (d *Database) ApplyPolicy(ctx context.Context, document string, o *PolicyOptions) (*PolicyPlan, error) {
	plan := &PolicyPlan{}
	in := d.together
	if o.DryRun {
		in = d.undone
	}
	err := in(ctx, func(w *work) {
		var rules []string
		w.stillUsable(func(wrong policy.Wrong) error {
			if slices.Contains(rules, wrong.Rule) {
				return fmt.Errorf("rule %q: %w", wrong.Rule, wrong.Err)
			}
			return nil
		}, func(w *work) {
			plan.Changes = append([]Row{}, w.ask(`SELECT section, name, what, before::text::json, after::text::json
FROM rate_limit_apply($1::text::jsonb, $2)`, document, o.Prune)...)
			for i := range plan.Changes {
				if c := &plan.Changes[i]; !slices.Contains([]string{"tiers", "users", "keys"}, c.Text("section")) {
					rule, _, _ := strings.Cut(c.Text("name"), "/")
					rules = append(rules, rule)
				}
			}
		})
		text, err := json.Marshal(plan.Changes)
		w.fail(err)
		sum := sha256.Sum256(text)
		plan.Expect = hex.EncodeToString(sum[:8])
		if o.Expect != "" && o.Expect != plan.Expect {
			w.fail(&ratelimit.FieldError{Field: "--expect", Value: o.Expect, Want: plan.Expect + ": the file or the database has changed since that diff; look at: policy diff"})
		}
		if o.Replay != nil {
			w.planReplays(plan, rules, o.Replay)
		}
	})
	for i := range plan.Replays {
		if r := &plan.Replays[i]; err == nil {
			err = d.replayPlan(ctx, r, *o.Replay)
		}
	}
	return plan, err
}

// planReplays reads the limits of the rules that a plan has changed, in the transaction of the changes.
func (w *work) planReplays(plan *PolicyPlan, rules []string, period *Period) {
	plan.Replays = nil
	for _, rule := range some[string](w, `SELECT name FROM rate_limit_rules
WHERE action = 'limit' AND mode = 'enforce' AND name = ANY ($1::text[]) ORDER BY name`, rules) {
		limits := w.limitsOf(rule, period.From)
		if w.err != nil {
			return
		}
		// Otherwise a request costs what it did.
		limits.costIsSet = slices.ContainsFunc(plan.Changes, func(c Row) bool {
			return c.Text("section") == "rules" && c.Text("name") == rule && c.Text("what") == "cost"
		})
		plan.Replays = append(plan.Replays, PolicyReplay{Rule: rule, limits: limits})
	}
}

// mostReplayed bounds Replay.Changed of each rule.
const mostReplayed = 10

// replayPlan replays the recorded requests of a rule of a plan.
func (d *Database) replayPlan(ctx context.Context, r *PolicyReplay, period Period) error {
	q := &ReplayQuery{Period: period, Rule: r.Rule, Most: mostReplayed}
	t, err := d.replay(ctx, q, r.limits)
	if err != nil {
		return err
	}
	if err := t.check(q); err != nil {
		r.Problem = err.Error()
	} else {
		r.Replay = &t.replay
	}
	return nil
}
