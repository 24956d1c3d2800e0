package policy

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A new condition needs a field of Rule, and a line in compileConditions, in keepMatching or
// matchesTimeAndNetwork, and in unmetConditions.

// match returns the rules that match a request by tier, method, host and path, in the order of evaluation.
// Rules that the index files under networks also match by network. The caller must not change the list, which
// is valid until the next call with v.
func match(set *ruleSet, f *Facts, v *Verdict) []*rule {
	if set.memo != nil && len(set.index.byNetwork) == 0 {
		return findCached(set, f, v.Tier)
	}
	found := v.found[:0]
	if set.memo != nil {
		found = append(found, findCached(set, f, v.Tier)...)
	} else {
		found = findRules(set.index, f, v.Tier, found)
	}
	found = findByNetwork(set.index, f, v.Tier, found)
	v.found = found
	return found
}

// compileConditions compiles the conditions of a rule.
func (r *rule) compileConditions() error {
	var methods []string
	for _, method := range r.row.Methods {
		methods = append(methods, strings.ToUpper(method))
	}
	r.row.Methods = methods
	for _, host := range r.row.Hosts {
		p, err := parseHost(host)
		if err != nil {
			return err
		}
		r.hosts = append(r.hosts, p)
	}
	everywhere := false // one of the paths is /*
	for _, path := range r.row.Paths {
		p, err := parsePath(path)
		if err != nil {
			return err
		}
		r.paths = append(r.paths, p)
		everywhere = everywhere || p.rest && p.literal == "" && len(p.segments) == 0
	}
	if everywhere {
		r.paths = nil
	} else {
		r.endpoint = strings.Join(r.row.Paths, " ")
	}
	for _, network := range r.row.Networks {
		if !network.IsValid() {
			want := "networks such as 192.0.2.0/24"
			return &ratelimit.FieldError{Field: "networks", Value: network.String(), Want: want}
		}
		r.networks = append(r.networks, normalNetwork(network))
	}
	r.dynamic = r.networks != nil || r.from != always || r.until != never
	return nil
}

// matchesTimeAndNetwork reports whether a request meets a rule's conditions on time and network.
func matchesTimeAndNetwork(r *rule, f *Facts, at int64) bool {
	return r.from <= at && at < r.until && matchesNetwork(r, f)
}

func matchesTier(r *rule, tier string) bool {
	return len(r.row.Tiers) == 0 || contains(r.row.Tiers, tier)
}

// matchesMethod reports whether a rule matches a method, which must be in upper case.
func matchesMethod(r *rule, method string) bool {
	return len(r.row.Methods) == 0 || contains(r.row.Methods, method)
}

func matchesHost(r *rule, host string) bool {
	for i := range r.hosts {
		if hostMatches(r.hosts[i], host) {
			return true
		}
	}
	return len(r.hosts) == 0
}

// matchesPath reports whether a rule matches a normal path. See NormalPath for the readings of a backslash.
func matchesPath(r *rule, path string) bool {
	if strings.IndexByte(path, '\\') < 0 {
		return matchesReading(r, path)
	}
	if r.row.Action == Exempt {
		return matchesReading(r, path) && matchesReading(r, backslashAsSlash(path))
	}
	return matchesReading(r, path) || matchesReading(r, backslashAsSlash(path))
}

func matchesReading(r *rule, path string) bool {
	for i := range r.paths {
		if pathMatches(r.paths[i], path) {
			return true
		}
	}
	return len(r.paths) == 0
}

// matchesNetwork reports whether a network of the rule contains the client's address, or the rule has none.
// An assumed address may belong to a load balancer. It matches no exempt rule and no rule of a family, so
// that it cannot free a request from limits.
func matchesNetwork(r *rule, f *Facts) bool {
	if r.networks == nil {
		return true
	}
	if f.Assumed && (r.row.Action == Exempt || r.row.Action == Charge && r.row.Family != "") {
		return false
	}
	address := plainAddress(f.Address)
	for i := range r.networks {
		if r.networks[i].Contains(address) {
			return true
		}
	}
	return false
}
