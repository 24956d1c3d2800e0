package traefikplugin

import (
	"net/http"
	"net/netip"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// policyUse identifies a policy.
type policyUse struct {
	settings edge.PolicySettings
	database edge.StoreSettings
}

// policyStore reads the database of the policy. limits is where the limits are counted.
func (c *compiled) policyStore(limits edge.StoreSettings) (edge.StoreSettings, error) {
	at, err := c.otherStore("policy.", c.policy, limits)
	if err == nil && at.DSN == edge.MemoryDSN {
		err = edge.PolicyNeedsPostgres()
	}
	return at, err
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
