package policy

import "strings"

// Conditions are the hosts, paths and methods of a rule, for a limit that is no rule. They do not change.
type Conditions struct{ given, anyPath *ruleSet }

// NewConditions compiles conditions. A list that is empty holds for all requests. The error is a
// *ratelimit.FieldError.
func NewConditions(hosts, paths, methods []string) (*Conditions, error) {
	row := Rule{Name: "match", Action: Block, Hosts: hosts, Paths: paths, Methods: methods}
	given := newRuleSet([]Rule{row}, nil, nil, Options{})
	if len(given.wrong) > 0 {
		return nil, given.wrong[0].Err
	}
	row.Paths = nil
	return &Conditions{given, newRuleSet([]Rule{row}, nil, nil, Options{})}, nil
}

// Hold reports whether the conditions hold for a request. escaped is its path as it was sent. A path that names one
// resource or another, depending on the server that reads it (see NormalPath), matches if one of its readings does,
// or if they are not known: a client must not choose which limits apply.
func (c *Conditions) Hold(method, host, escaped string) bool {
	host = NormalHost(host)
	path, err := NormalPath(escaped)
	if err != nil {
		return holds(c.anyPath, method, host, "/")
	}
	if holds(c.given, method, host, path) {
		return true
	}
	if strings.IndexByte(path, ';') >= 0 {
		for _, without := range withoutParameters(path) {
			if holds(c.given, method, host, without) {
				return true
			}
		}
	}
	return false
}

func holds(set *ruleSet, method, host, path string) bool {
	return len(findRules(set, 0, methodBit(set, method), host, path, nil)) > 0
}
