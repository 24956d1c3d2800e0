package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

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
