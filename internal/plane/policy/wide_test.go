package policy_test

import (
	"net/netip"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// matchesExactly reports whether the method, the path and a known address match a rule as they are.
func (r *naiveRule) matchesExactly(f *policy.Facts) bool {
	path := strings.Split(f.Path, "/")
	return anyMatches(r.Methods, func(m string) bool { return m == strings.ToUpper(f.Method) }) &&
		(!f.Address.IsValid() ||
			anyMatches(r.Networks, func(n netip.Prefix) bool { return contains(n, f.Address) })) &&
		anyMatches(r.paths, func(p []string) bool { return pathMatches(p, path) })
}

// matchesWidely is like matchesExactly, but ignores case in the path, and GET covers HEAD.
func (r *naiveRule) matchesWidely(f *policy.Facts) bool {
	path := strings.Split(strings.ToLower(f.Path), "/")
	return anyMatches(r.Methods, func(m string) bool {
		return m == strings.ToUpper(f.Method) || m == "GET" && f.Method == "HEAD"
	}) && anyMatches(r.paths, func(p []string) bool {
		return pathMatches(strings.Split(strings.ToLower(strings.Join(p, "\n")), "\n"), path)
	})
}
