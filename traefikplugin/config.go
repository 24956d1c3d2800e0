package traefikplugin

import "github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"

// Config is the middleware's part of Traefik's dynamic configuration. Traefik matches
// names without regard to case, converts numbers and booleans to text, and puts settings
// of other names into Other, see adoptAll. A setting that is "" was left out. Those that are on
// or off may also be true or false. Traefik gives a plugin "" for an empty map, as in
// policy: {}, and decodes "" only into a list. So what may be an empty map is a list of at
// most one.
type Config struct {
	// DSN is the database: a postgres:// URL, or keyword=value pairs. "memory"
	// counts in this process. Default: the environment variable DATABASE_URL.
	DSN string `json:"dsn,omitempty"`

	// DSNFile is the path of a file with the DSN, which is read when the middleware is
	// made: Traefik shows a DSN in its API and in its debug log.
	DSNFile string `json:"dsnFile,omitempty"`

	// MaxConns bounds the connections to the database, from 1 to 1000. Default:
	// the DSN's pool_max_conns, or 8.
	MaxConns string `json:"maxConns,omitempty"`

	// AutoMigrate creates or upgrades the two tables on first use, unless the
	// environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE is true. Default on.
	AutoMigrate string `json:"autoMigrate,omitempty"`

	// CleanupProbability is how likely a statement is followed by the deletion
	// of expired rows, from 0 to 1; 0 is never. Default 0.1.
	CleanupProbability string `json:"cleanupProbability,omitempty"`

	// InMemoryBlock refuses requests without asking the database if the quota of their key is
	// known to be used up. If another process refunds or resets that quota, it is noticed within
	// a second. Default on.
	InMemoryBlock string `json:"inMemoryBlock,omitempty"`

	// MaxBlockedKeys bounds the used-up keys that InMemoryBlock remembers, from 1 to
	// 10000000. Default 10000.
	MaxBlockedKeys string `json:"maxBlockedKeys,omitempty"`

	// MaxLeases bounds the keys of which this process holds a Lease, from 1 to 1000000.
	// Requests of further keys ask the database. Default 10000.
	MaxLeases string `json:"maxLeases,omitempty"`

	// NodeName is the name of this Traefik in the list of proxies (caddy pg-ratelimit nodes),
	// up to 100 bytes. Several Traefiks on one host should each have one. Default: the host
	// name and /traefik.
	NodeName string `json:"nodeName,omitempty"`

	// Region is where this Traefik runs, in the list of proxies and in the history, up to 100 bytes.
	// Default: that of the history, else none.
	Region string `json:"region,omitempty"`

	// Zone has the settings of the limit of the middleware itself. Its Audit is also for the zones
	// and the policy.
	Zone `mapstructure:",squash"`

	// History records what happens to requests: an audit log, metrics by minute, hour and
	// day, and the usage of users and API keys. Default: only with an Audit.
	History []History `json:"history,omitempty"`

	// Policy applies the rules in the database to the same requests: what it says and all
	// limits here are decided together. With a policy there may be no limit here.
	Policy []Policy `json:"policy,omitempty"`

	// Zones are further limits on the same request: it passes only if all limits have
	// room, and is charged to all of them or to none.
	Zones []Zone `json:"zones,omitempty"`

	// Timeout is how long the database has for a decision. Default 250ms.
	Timeout string `json:"timeout,omitempty"`

	// OnError is what happens to a request if there is no decision in time: allow lets
	// it pass, deny refuses it with status 503. Default allow.
	OnError string `json:"onError,omitempty"`
	// LocalShare is the share of this process with onError local, such as 50%. "" is that of one of the
	// proxies in the registry.
	LocalShare string `json:"localShare,omitempty"`

	// Headers says which X-RateLimit headers a response has if the upstream sends some,
	// too: those of the limit (auto or ours), those that tell of less remaining (tighter), or all
	// of them (both). Default auto: the first response of such an upstream may have all of them, and
	// other upstreams get Traefik's own writer. Ours and tighter take more time.
	Headers string `json:"headers,omitempty"`

	// Fields says which fields of a response describe the limits: X-RateLimit-* (x), RateLimit-Policy
	// and RateLimit of draft-ietf-httpapi-ratelimit-headers-11 (ietf), or all of them (x ietf). Default x,
	// which takes the least time.
	Fields string `json:"fields,omitempty"`

	// Exempt are networks and addresses whose requests pass all limits here, uncounted, such as
	// "10.0.0.0/8 192.0.2.7". The rules of a policy apply. Default: none.
	Exempt string `json:"exempt,omitempty"`

	// ExemptHeader is the name of a header and a secret of 16 characters or more. Requests with the
	// secret in the header pass all limits here, uncounted. The upstream does not get the header. The
	// secret may be {env.NAME} or {file.PATH}: Traefik shows the text in its API. Default: none.
	ExemptHeader string `json:"exemptHeader,omitempty"`

	// IPStrategy defines {client_ip}, as in Traefik's own sourceCriterion. Default:
	// the address of the connection.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`
}

// Zone is one limit, in text: prefix, key, algorithm, limit, limits, burst, cost, minCost, settle, durable,
// synchronousCommit, lease, maxKeys, hashKey, ipv4Prefix, ipv6Prefix, ban, audit, wait and mode.
// edge.LimitTable says what each of them means, which values and units it has, and what holds without it. Match
// says which requests the limit is for.
type Zone = edge.LimitSettings

// History is what is recorded of requests, and for how long. Requests do not wait for it.
type History struct {
	// DSN is the database of the history, if it is another one than that of the limits, and
	// DSNFile the path of a file with it, as in Config.
	DSN     string `json:"dsn,omitempty"`
	DSNFile string `json:"dsnFile,omitempty"`

	// Node is the name of this Traefik in the history, up to 100 bytes. Default: the host
	// name, /traefik/ and the number of the process.
	Node string `json:"node,omitempty"`

	// Region is where this Traefik runs, up to 100 bytes. Default: none.
	Region string `json:"region,omitempty"`

	// AuditAddress is how much of the clients' addresses is in the audit log: full, prefix
	// (the network) or off. Default full.
	AuditAddress string `json:"auditAddress,omitempty"`

	// Retention is how long the history is kept. Default: what the database has.
	Retention []Retention `json:"retention,omitempty"`

	// Other are settings that have none of these names.
	Other map[string]any `json:"-" mapstructure:",remain"`
}

// Retention is how long the parts of the history are kept: durations from 1d to 100y, such as 90d,
// 12w or 7y, where a year is 366 days. What is left out stays as it is in the database.
type Retention struct {
	// Audit is for the audit log.
	Audit string `json:"audit,omitempty"`

	// MetricsMinute, MetricsHour and MetricsDay are for the metrics.
	MetricsMinute string `json:"metricsMinute,omitempty"`
	MetricsHour   string `json:"metricsHour,omitempty"`
	MetricsDay    string `json:"metricsDay,omitempty"`

	// Usage is for the usage of users and API keys.
	Usage string `json:"usage,omitempty"`

	// Other are settings that have none of these names.
	Other map[string]any `json:"-" mapstructure:",remain"`
}

// Policy applies the rules in the database: which limits apply to whom is data there, and all
// proxies obey a change within Refresh. It needs Postgres 15 or newer.
type Policy struct {
	// DSN is the database of the policy, if it is another one than that of the limits, and
	// DSNFile the path of a file with it, as in Config.
	DSN     string `json:"dsn,omitempty"`
	DSNFile string `json:"dsnFile,omitempty"`

	// APIKey is the API key of a request: text with a placeholder, such as
	// {header.X-Api-Key}. "Bearer " at its beginning is cut off. Default: requests have
	// no API key.
	APIKey string `json:"apiKey,omitempty"`

	// User is the user of a request without an API key, if a middleware before this one
	// authenticates users: text with a placeholder, such as {header.X-Forwarded-User}.
	// Default: such a request is nobody's.
	User string `json:"user,omitempty"`

	// Tier is that of requests that have no other one. May contain placeholders; a tier
	// that is empty is the default. Default anonymous.
	Tier string `json:"tier,omitempty"`

	// UnknownKey is what happens to a request with an unknown, expired or revoked API key:
	// reject refuses it with status 401, anonymous treats it as one without a key. Default
	// reject.
	UnknownKey string `json:"unknownKey,omitempty"`

	// Route is the name of the route, for rules that count by route. May contain
	// placeholders. Default: none.
	Route string `json:"route,omitempty"`

	// Refresh is how often to ask the database for changes, from 50ms to 1m. Default
	// 500ms.
	Refresh string `json:"refresh,omitempty"`

	// MaxIdentities is the most API keys and users to remember, from 1 to 10000000.
	// Default 100000.
	MaxIdentities string `json:"maxIdentities,omitempty"`

	// ForwardHeaders tells the upstream what the policy knows, in the request headers
	// X-RateLimit-User, X-RateLimit-Tier, X-RateLimit-Key-Id and X-RateLimit-Rule. A
	// client's own headers of these names are removed in any case. Default off.
	ForwardHeaders string `json:"forwardHeaders,omitempty"`

	// Other are settings that have none of these names.
	Other map[string]any `json:"-" mapstructure:",remain"`
}

// IPStrategy chooses an address from X-Forwarded-For as Traefik's does.
type IPStrategy struct {
	// Depth takes the address at this place, counted from the right.
	Depth int `json:"depth,omitempty"`

	// ExcludedIPs takes the first address from the right that is not in these
	// addresses and networks. Depth, if it is set, is used instead.
	ExcludedIPs []string `json:"excludedIPs,omitempty"`

	// IPv6Subnet is the IPv6Prefix of all limits that have none of their own, under the
	// name that it has in Traefik. From 1 to 128.
	IPv6Subnet *int `json:"ipv6Subnet,omitempty"`

	// Other are settings that have none of these names.
	Other map[string]any `json:"-" mapstructure:",remain"`
}

// CreateConfig returns a configuration in which nothing is set. Traefik decodes its dynamic
// configuration into it. What is still "" after that has the default that its field documents.
func CreateConfig() *Config {
	return &Config{}
}
