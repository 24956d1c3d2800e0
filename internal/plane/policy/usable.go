package policy

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
	set := newRuleSet(rules, overrides, usable, options)
	newest := make(map[string]string, len(rules))
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "rule" {
			newest[rows[i+1]] = rows[i+2]
		}
	}
	for i := range set.wrong {
		if name := set.wrong[i].Rule; set.wrong[i].Replaced {
			newest[name] = usable[name]
		} else if set.wrong[i].Override == "" {
			delete(newest, name)
		}
	}
	return set, newest, nil
}
