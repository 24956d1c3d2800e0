package page

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// ruleNames are the names of the rules that there are.
type ruleNames map[string]bool

func namesOf(rules []admin.RuleState) ruleNames {
	names := ruleNames{}
	for _, r := range rules {
		names[r.Name] = true
	}
	return names
}

// ruleNames are the names of the rules. It takes the mutex.
func (c *collector) ruleNames() ruleNames {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rules
}

// shown is the name of a limit or a rule in the history, for people: a rule that is no more is marked. Refusals without a limit have the reason.
func (names ruleNames) shown(name string) string {
	if reason, isReason := strings.CutPrefix(name, reasonPrefix); isReason {
		return admin.ReasonText(reason)
	}
	rest, isRule := strings.CutPrefix(name, "rule/")
	if !isRule || names == nil {
		return name
	}
	if rule, _, _ := strings.Cut(rest, "/"); names[rule] {
		return name
	}
	return name + " (deleted)"
}
