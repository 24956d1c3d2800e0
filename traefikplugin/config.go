package traefikplugin

import (
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// Config is the middleware's part of Traefik's dynamic configuration. All settings that are one value are in
// Other, which Traefik fills with what has no field: docs/settings.md lists them, and values reads them.
// Traefik gives a plugin "" for an empty map, as in policy: {}, and decodes "" only into a list. So what may
// be an empty map is a list of at most one.
type Config struct {
	// Other has the settings of the middleware itself, of its limit, and of the store. Its audit is that of
	// zones and of the policy, unless they have one.
	Other Settings `json:"-" mapstructure:",remain"`

	// Match selects the requests of the limit of the middleware itself.
	Match *serve.Match `json:"match,omitempty"`

	// History records what happens to requests: an audit log, metrics by minute, hour and
	// day, and the usage of users and API keys. Default: only with an audit.
	History []History `json:"history,omitempty"`

	// Policy applies the rules in the database to the same requests: what it says and all
	// limits here are decided together. With a policy there may be no limit here.
	Policy []Settings `json:"policy,omitempty"`

	// Zones are further limits on the same request: it passes only if all limits have
	// room, and is charged to all of them or to none.
	Zones []Zone `json:"zones,omitempty"`

	// IPStrategy defines {client_ip}, as in Traefik's own sourceCriterion. Default:
	// the address of the connection.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`
}

// Settings are those that are one value.
type Settings = serve.Given

// Zone is one limit.
type Zone struct {
	Other Settings `json:"-" mapstructure:",remain"`

	// Match selects the requests of the limit.
	Match *serve.Match `json:"match,omitempty"`
}

// History configures the records of requests. Requests do not wait for it.
type History struct {
	Other Settings `json:"-" mapstructure:",remain"`

	// Retention has the ages of records that are deleted. Default: what the database has.
	Retention []Settings `json:"retention,omitempty"`
}

// IPStrategy chooses an address from X-Forwarded-For as Traefik's does.
type IPStrategy struct {
	// Depth takes the address at this place, counted from the right.
	Depth int `json:"depth,omitempty"`

	// ExcludedIPs takes the first address from the right that is not in these
	// addresses and networks. Depth, if it is set, is used instead.
	ExcludedIPs []string `json:"excludedIPs,omitempty"`

	// IPv6Subnet is the ipv6Prefix of all limits that have none of their own, under the
	// name that it has in Traefik. From 1 to 128.
	IPv6Subnet *int `json:"ipv6Subnet,omitempty"`

	// Other are settings that have none of these names.
	Other Settings `json:"-" mapstructure:",remain"`
}

// CreateConfig returns a configuration in which nothing is set. Traefik decodes its dynamic configuration
// into it.
func CreateConfig() *Config {
	return &Config{Other: Settings{}}
}
