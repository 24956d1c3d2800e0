package policy

import "strings"

// Conditions are the hosts, paths and methods of a rule, for a limit that is no rule. They do not change.
type Conditions struct{ rule *rule }

// NewConditions compiles conditions. A list that is empty holds for all requests. The error is a
// *ratelimit.FieldError.
func NewConditions(hosts, paths, methods []string) (*Conditions, error) {
	row := Rule{Name: "match", Action: Block, Hosts: hosts, Paths: paths, Methods: methods}
	r, err := compileRule(&row, Options{})
	if err != nil {
		return nil, err
	}
	return &Conditions{r}, nil
}

// Hold reports whether the conditions hold for a request. escaped is its path as it was sent. A path that names one
// resource or another, depending on the server that reads it (see NormalPath), matches if one of its readings does,
// or if they are not known: a client must not choose which limits apply.
func (c *Conditions) Hold(method, host, escaped string) bool {
	if !matchesMethod(c.rule, strings.ToUpper(method)) || !matchesHost(c.rule, NormalHost(host)) {
		return false
	}
	path, err := NormalPath(escaped)
	if err != nil || matchesPath(c.rule, path) {
		return true
	}
	if strings.IndexByte(path, ';') >= 0 {
		for _, without := range withoutParameters(path) {
			if matchesPath(c.rule, without) {
				return true
			}
		}
	}
	return false
}
