package policy

import "sort"

// A Policy replaces a rule that cannot be used by its last usable version, if it has had one. So
// a wrong change does not open what the rule limits or blocks.

// compileRows makes a set of the rules in rows of rulesSQL. Its Wrong names the rules that cannot
// be used, also those that are replaced. usable are the last usable versions of rules, by name, as
// rulesSQL delivers them. It returns those of the rules in rows.
func compileRows(rows []string, usable map[string]string, options Options) (*ruleSet, map[string]string, error) {
	rules, overrides, err := DecodeRules(rows)
	if err != nil {
		return nil, nil, err
	}
	set := newRuleSet(rules, overrides, options)
	wrong := wrongRules(set)
	newest := make(map[string]string, len(rules))
	replaced := false
	for i := 0; i < len(rows); i += 3 {
		name := rows[i+1]
		if rows[i] != "rule" {
			continue
		}
		if wrong[name] == nil {
			newest[name] = rows[i+2]
		} else if usable[name] != "" {
			newest[name] = usable[name]
			replaced = true
		}
	}
	if !replaced {
		return set, newest, nil
	}
	for i := range rules {
		if text := newest[rules[i].Name]; wrong[rules[i].Name] != nil && text != "" {
			rules[i] = decodeRule(rules[i].Name, text)
		}
	}
	set = newRuleSet(rules, overrides, options)
	still := wrongRules(set)
	for name, err := range wrong {
		if still[name] == nil {
			set.wrong = append(set.wrong, Wrong{Rule: name, Err: err, Replaced: true})
		}
	}
	sort.SliceStable(set.wrong, func(i, j int) bool { return set.wrong[i].Rule < set.wrong[j].Rule })
	return set, newest, nil
}

// wrongRules are the errors of the rules that cannot be used, by name.
func wrongRules(set *ruleSet) map[string]error {
	wrong := make(map[string]error)
	for i := range set.wrong {
		if set.wrong[i].Override == "" {
			wrong[set.wrong[i].Rule] = set.wrong[i].Err
		}
	}
	return wrong
}
