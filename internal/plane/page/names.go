package page

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// ruleNames are the rules that there are, by the names that the counters and the history have.
type ruleNames struct{ byCounter, byName map[string]string }

func namesOf(rules []admin.RuleState) *ruleNames {
	names := &ruleNames{map[string]string{}, map[string]string{}}
	for _, r := range rules {
		names.byCounter[r.Counter], names.byName[r.Name] = r.Name, r.Name
	}
	return names
}

// shown is the name of a limit or a rule in the history, for people: a rule has its name of now, and one that is no
// more is marked. Refusals without a limit have the reason.
func (r *ruleNames) shown(name string) string {
	if reason, isReason := strings.CutPrefix(name, history.ReasonPrefix); isReason {
		return admin.ReasonText(reason)
	}
	rest, isRule := strings.CutPrefix(name, "rule/")
	if !isRule || r == nil {
		return name
	}
	rule, limit, hasLimit := strings.Cut(rest, "/")
	now, known := r.byName[rule]
	if other, renamed := r.byCounter[rule]; !known && renamed {
		now, known = other, true
	}
	if hasLimit {
		limit = "/" + limit
	}
	if !known {
		return "rule/" + rest + " (deleted)"
	}
	return "rule/" + now + limit
}
