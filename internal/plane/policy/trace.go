package policy

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Trace describes how the policy evaluated a request.
type Trace struct {
	// Key is the reason why the request's API key is not valid, or NoReason.
	Key Reason
	// Rules has all rules of the snapshot in the order of evaluation, then the rules that cannot be used,
	// then the rules with the mode off.
	Rules []TracedRule
	// Unlimited has the hits of unlimited limits, which the Verdict omits. Terms[i] describes Unlimited[i].
	Unlimited []ratelimit.Hit
	Terms     []*Terms

	above  []TracedRule // the rules that apply to users above the sender
	exempt string       // the rule that exempts the sender alone, or ""
}

// TracedRule reports whether a rule applies to a request, and why.
type TracedRule struct {
	Name     string      `json:"name"`
	Action   Action      `json:"action"`
	Family   *string     `json:"family"` // nil without a family
	Priority int64       `json:"priority"`
	Mode     option.Mode `json:"mode"`
	Applies  bool        `json:"applies"`
	Why      string      `json:"why"`
	Level    *string     `json:"level"` // the user above to whom the rule applies; nil for the sender
}

// traced describes a rule in a trace.
func traced(row *Rule, applies bool, why string) TracedRule {
	var family *string
	if row.Family != "" {
		family = &row.Family
	}
	return TracedRule{row.Name, row.Action, family, row.Priority, row.Mode, applies, why, nil}
}

// addAbove adds the rules that apply to a request as that of a user above its sender.
func (t *Trace) addAbove(v *Verdict) {
	last := ""
	for _, l := range v.limits { // the limits of a rule are adjacent
		if l.rule.row.Name != last {
			last = l.rule.row.Name
			one := traced(&l.rule.row, true, "matches")
			one.Level = &v.above
			t.above = append(t.above, one)
		}
	}
}

// Explain is like EvaluateIdentity, and also returns a trace of the evaluation. If f.Path is "", the path is
// ambiguous: proxies refuse such a request before they evaluate the rules.
func Explain(s *Snapshot, f *Facts, id *Identity, now time.Time) (*Verdict, *Trace) {
	t := &Trace{}
	v := &Verdict{trace: t}
	state, reason := evaluateInFull(s, f, id, now, v)
	if f.Path == "" {
		Refuse(v, AmbiguousPath)
	}
	t.Key = reason
	at := now.UnixMicro()
	applied := map[string]bool{}
	families := map[string]string{} // the enforced rule of each family
	for _, l := range v.limits {
		row := &l.rule.row
		applied[row.Name] = true
		if row.Mode != option.Shadow && takesFamily(l.rule, f) {
			families[row.Family] = row.Name
		}
	}
	for _, m := range v.ShadowTerms {
		applied[m.Rule] = true
	}
	first := t.exempt // the rule that exempts or blocks the request
	if v.Exempt || v.Reason == Blocked && v.Level == "" {
		first = v.Rule
	}
	applied[first] = true
	for _, r := range s.set.rules {
		applies, why := false, unmetConditions(r, f, state, at, v)
		switch {
		case f.Path == "" || why == "" && v.Refused() &&
			(v.Reason != Blocked && v.Reason != NoQuota || v.Level != ""):
			why = "the request is refused before: " + string(v.Reason)
		case why != "":
		case applied[r.row.Name]:
			applies, why = true, "matches"
			if r.row.Mode == option.Shadow {
				why = "matches, in the shadow"
			}
			if r.row.Action == ActionLimit && r.row.Family != "" && !takesFamily(r, f) {
				why += "; charged beside family " + r.row.Family + ", because of the spelling of the request"
			}
		case first != "":
			why = "the rule " + first + " comes first"
		case r.row.Family == "" || families[r.row.Family] == "":
			why = "its limits of " + string(r.limits[0].row.Unit) + " do not charge " + f.Method
			if r.row.Mode != option.Shadow && takesFamily(r, f) {
				families[r.row.Family] = r.row.Name
			}
		default:
			why = "family " + r.row.Family + ": the rule " + families[r.row.Family] + " comes first"
		}
		t.Rules = append(t.Rules, traced(&r.row, applies, why))
	}
	for _, w := range s.set.unusable {
		if w.row != nil {
			t.Rules = append(t.Rules, traced(w.row, false, "it cannot be used: "+w.Err.Error()))
		}
	}
	for _, row := range s.set.off {
		t.Rules = append(t.Rules, traced(row, false, "mode: off"))
	}
	t.Rules = append(t.Rules, t.above...)
	return v, t
}
