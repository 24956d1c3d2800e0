package traefikplugin

import (
	"net/http"
	"net/netip"
	"reflect"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// policyUse identifies a policy.
type policyUse struct {
	settings edge.PolicySettings
	database edge.StoreSettings
}

// readPolicy reads the policy of a configuration.
func (c *Config) readPolicy(to *compiled, a *addresses) error {
	if err := checkOne("policy", len(c.Policy)); err != nil {
		return named("", err)
	}
	one := Policy{APIKey: ""} // all defaults, for policy: {}
	if len(c.Policy) > 0 {
		one = c.Policy[0]
	}
	var err error
	if to.site.Policy, err = edge.NewSitePolicy(reflect.ValueOf(one), a.parseText, "{header.X-Api-Key}", "{header.X-Forwarded-User}"); err != nil {
		return named("policy.", err)
	}
	to.forward, err = edge.ParseSwitch("forward_headers", one.ForwardHeaders, false)
	return named("policy.", err)
}

// policyStore reads the database of the policy. limits is where the limits are counted.
func (c *Config) policyStore(limits edge.StoreSettings) (edge.StoreSettings, error) {
	var err error
	if len(c.Policy) > 0 {
		limits, err = c.otherStore("policy.", c.Policy[0].DSN, c.Policy[0].DSNFile, limits)
	}
	if err == nil && limits.DSN == edge.MemoryDSN {
		err = edge.PolicyNeedsPostgres()
	}
	return limits, err
}

// addressOf is the address of a client, and whether it is assumed, see addresses.client. One that cannot be read is
// unknown.
func addressOf(a *addresses, r *http.Request) (netip.Addr, bool) {
	if a.plain {
		if connection, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			return connection.Addr().Unmap(), false
		}
	}
	text, assumed := a.client(r)
	address, _ := parseAddress(text)
	return address.WithZone(""), assumed // a client can choose a long one
}
