package traefikplugin

// Config is the middleware's section of Traefik's dynamic configuration. Traefik puts all settings without a
// field into Other. docs/generated/settings.md lists these settings.
type Config struct {
	// Other has the settings of the middleware, of its own limit and of the store. Its audit setting is the
	// default for Zones and the policy.
	//
	// It also has the maps policy and history, which may be empty; see reader.part. With a policy, limits in
	// the configuration are optional: the rules in the database apply to the same requests, and all limits
	// are decided together. A history records requests: an audit log, metrics by minute, hour and day, and
	// the usage of users and API keys. By default, requests are recorded only if an audit setting is given.
	Other Settings `json:"-" mapstructure:",remain"`

	// Match selects the requests for the middleware's own limit. Nil means all requests.
	Match *Match `json:"match,omitempty"`

	// Zones are further limits on the same requests. A request passes only if all limits admit it. It is
	// charged to all of them or to none.
	Zones []Zone `json:"zones,omitempty"`

	// IPStrategy defines {client_ip}, as in Traefik's own sourceCriterion. Nil means the address of the
	// connection.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`
}

// Settings holds settings as Traefik's providers decode them: strings, numbers and booleans by name. A
// name is in camel case, such as ipv4Prefix.
type Settings = map[string]any

// Zone is a further limit.
type Zone struct {
	Other Settings `json:"-" mapstructure:",remain"`

	// Match selects the requests for the limit. Nil means all requests.
	Match *Match `json:"match,omitempty"`
}

// IPStrategy chooses an address from X-Forwarded-For as Traefik's does.
type IPStrategy struct {
	// Depth selects the address at this position, counted from the right.
	Depth int `json:"depth,omitempty"`

	// ExcludedIPs selects the first address from the right that is in none of these addresses and networks.
	// Depth takes precedence.
	ExcludedIPs []string `json:"excludedIPs,omitempty"`

	// IPv6Subnet is the default ipv6Prefix of all limits, from 1 to 128. The name is Traefik's.
	IPv6Subnet *int `json:"ipv6Subnet,omitempty"`

	// Other holds settings with unknown names, which are errors.
	Other Settings `json:"-" mapstructure:",remain"`
}

// CreateConfig returns an empty configuration, into which Traefik decodes its dynamic configuration.
func CreateConfig() *Config {
	return &Config{Other: Settings{}}
}
