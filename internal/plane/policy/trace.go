package policy

import (
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Trace describes how the policy evaluated a request.
type Trace struct {
	// Key is the reason why the API key of the request is not valid, or NotRefused.
	Key Reason
	// Rules has all rules of the snapshot in the order in which they are tried, and then those that cannot be
	// used and those with the mode off.
	Rules []TracedRule
	// Unlimited has the hits of unlimited limits, which the Verdict omits. Marks[i] describes Unlimited[i].
	Unlimited []ratelimit.Hit
	Marks     []*Mark
}

// TracedRule says whether a rule applies to a request, and why.
type TracedRule struct {
	Name     string        `json:"name"`
	Action   Action        `json:"action"`
	Family   *string       `json:"family"` // nil for none
	Priority int64         `json:"priority"`
	Mode     settings.Mode `json:"mode"`
	Applies  bool          `json:"applies"`
	Why      string        `json:"why"`
}

// add adds a rule to the trace.
func (t *Trace) add(row *Rule, applies bool, why string) {
	x := TracedRule{Name: row.Name, Action: row.Action, Priority: row.Priority, Mode: row.Mode,
		Applies: applies, Why: why}
	if row.Family != "" {
		x.Family = &row.Family
	}
	t.Rules = append(t.Rules, x)
}

// Explain evaluates a request as Evaluate does, and describes how. Facts.Path is "" for an ambiguous path:
// proxies refuse such a request before they evaluate the rules.
func Explain(s *Snapshot, f *Facts, id *Identity, now time.Time) (*Verdict, *Trace) {
	o, t := &Verdict{}, &Trace{}
	sender, reason := evaluateInFull(s, f, id, now, o)
	if f.Path == "" {
		RefuseAmbiguous(o)
	}
	t.Key = reason
	at := now.UnixMicro()
	selected := &Verdict{Tier: o.Tier, senderUnknown: o.senderUnknown}
	selectRules(match(s.set, f, selected), f, sender, at, selected)
	applied := map[string]bool{}
	families := map[string]string{} // the enforced rule of each family
	for i, l := range selected.limits {
		row := &l.rule.row
		applied[row.Name] = true
		if row.Mode != settings.Shadow {
			families[row.Family] = row.Name
		}
		if a := amountFor(l, sender, at, o); a.unlimited {
			selected.Hits[i].Limit = a.limit
			t.Unlimited = append(t.Unlimited, selected.Hits[i])
			t.Marks = append(t.Marks, a.mark)
		}
	}
	for _, m := range o.Would {
		applied[m.Rule] = true
	}
	if o.Exempt || o.Reason == Blocked {
		applied[o.Rule] = true
	}
	for _, r := range s.set.rules {
		applies, why := false, unmetConditions(r, f, sender, at, o)
		switch {
		case f.Path == "" || why == "" && o.Refused() && o.Reason != Blocked && o.Reason != NoQuota:
			why = "the request is refused before: " + string(o.Reason)
		case why != "":
		case applied[r.row.Name]:
			applies, why = true, "matches"
			if r.row.Mode == settings.Shadow {
				why = "matches, in the shadow"
			}
		case o.Exempt || o.Reason == Blocked:
			why = "the rule " + o.Rule + " comes first"
		default:
			why = "family " + r.row.Family + ": the rule " + families[r.row.Family] + " comes first"
		}
		t.add(&r.row, applies, why)
	}
	for _, w := range s.set.wrong {
		if w.row != nil {
			t.add(w.row, false, "it cannot be used: "+w.Err.Error())
		}
	}
	for _, row := range s.set.off {
		t.add(row, false, "mode: off")
	}
	return o, t
}

// unmetConditions describes the conditions of a rule that a request does not meet, such as "methods: not
// GET". It returns "" if there are none.
func unmetConditions(r *rule, f *Facts, sender *senderState, at int64, o *Verdict) string {
	var texts []string
	check := func(condition string, met bool, has string) {
		switch {
		case met:
		case has == "":
			texts = append(texts, condition+": the request has none")
		default:
			texts = append(texts, condition+": not "+has)
		}
	}
	check("valid", at >= r.from && at < r.until, "at this time")
	check("tiers", matchesTier(r, o.Tier), o.Tier)
	check("networks", matchesNetwork(r, f), addressText(f.Address))
	check("methods", matchesMethod(r, strings.ToUpper(f.Method)), f.Method)
	check("hosts", matchesHost(r, f.Host), f.Host)
	if o.Reason == AmbiguousPath && len(texts) == 0 && dependsOnParameters(r, f.Path) {
		return "paths: it depends on the parameters of " + f.Path
	}
	check("paths", matchesPath(r, f.Path), f.Path)
	if r.row.Action == Charge {
		texts = append(texts, missingKeyParts(r, f, sender, o.Tier)...)
	}
	return strings.Join(texts, "; ")
}

// dependsOnParameters reports whether a rule matches only one of the readings of a path.
func dependsOnParameters(r *rule, path string) bool {
	for _, without := range withoutParameters(path) {
		if matchesPath(r, path) != matchesPath(r, without) {
			return true
		}
	}
	return false
}

// missingKeyParts describes the parts of the counter's key that a request lacks.
func missingKeyParts(r *rule, f *Facts, sender *senderState, tier string) []string {
	user := sender.user
	if user == "" {
		user = nobodyText(f.Address)
	}
	var texts []string
	for i, part := range r.countBy.parts {
		by := counterBy{parts: [][]*dimension{part}, skipWithoutHeader: r.countBy.skipWithoutHeader}
		if text, _ := counterKey(&by, f, user, sender.key, tier); text == "" {
			name := "user"
			if len(r.row.CountBy) > 0 {
				name = r.row.CountBy[i]
			}
			texts = append(texts, "count_by: no "+name)
		}
	}
	return texts
}
