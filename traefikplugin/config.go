package traefikplugin

// Config is the middleware's part of Traefik's dynamic configuration. Traefik matches
// names without regard to case, converts numbers and booleans to text, and drops settings
// that do not exist without an error. A setting that is "" was left out. Those that are on
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

	// Prefix is the limit's namespace. Required unless there are zones.
	Prefix string `json:"prefix,omitempty"`

	// Key is what is counted together: requests with the same key share a quota. It is
	// text with the placeholders {client_ip} {remote_ip} {host} {method} {path}
	// {header.NAME} {cookie.NAME} {query.NAME}. Default {client_ip}.
	Key string `json:"key,omitempty"`

	// Algorithm is how requests are counted: sliding_window, fixed_window,
	// token_bucket, sliding_log or gcra. Default sliding_window.
	Algorithm string `json:"algorithm,omitempty"`

	// Limit is events and window, such as "100 1m" or "100/1m". Required unless
	// there are zones.
	Limit string `json:"limit,omitempty"`

	// Burst is how much may pass at once, for token_bucket and gcra. Default: the
	// limit's events.
	Burst string `json:"burst,omitempty"`

	// Cost is how much a request counts: a whole number, or text with
	// placeholders that gives one. Default 1.
	Cost string `json:"cost,omitempty"`

	// MinCost is the least that a request counts if placeholders give its cost. With
	// 0, a request of cost 0 passes while some quota is left, and is charged nothing.
	// Default 1.
	MinCost string `json:"minCost,omitempty"`

	// Durable counts in the table that survives a crash of the database server.
	Durable string `json:"durable,omitempty"`

	// SynchronousCommit waits until a decision on a durable limit is on disk.
	SynchronousCommit string `json:"synchronousCommit,omitempty"`

	// Lease is the largest share of what is left that this process may hold of one key in
	// advance, such as "5%": from 0.1% to 50%. Requests pass without asking the database
	// while it holds some. No more passes than the limit allows. For sliding_window,
	// fixed_window without a calendar and token_bucket. Default: none.
	Lease string `json:"lease,omitempty"`

	// HashKey stores the key as a SHA-256 digest. Default: true if the key has a
	// placeholder of a credential (a cookie, or a header or query parameter with a
	// name like authorization, token, secret or password, or one that gives the
	// policy's apiKey), else false. Proxies that share counters must set it alike.
	HashKey string `json:"hashKey,omitempty"`

	// IPv4Prefix is how many bits of an IPv4 address count, if a placeholder of the key
	// gives one: addresses of one network share the quota. From 1 to 32. Default 32.
	IPv4Prefix string `json:"ipv4Prefix,omitempty"`

	// IPv6Prefix is the same for IPv6, from 1 to 128. Default: ipStrategy.ipv6Subnet,
	// or 64, because a client can often choose any address of a /64.
	IPv6Prefix string `json:"ipv6Prefix,omitempty"`

	// Ban bans the sender of refused requests: "1h after 10 refusals in 1m". All proxies
	// count refusals together. Each further ban lasts twice as long as the one before, up
	// to a year. The API key is banned, or else the user, or else the client's address
	// (the /64 of an IPv6 address). It needs a policy. Default: none.
	Ban string `json:"ban,omitempty"`

	// Audit is which requests are in the audit log of the history: denied (those that were
	// refused), sample and a percentage (also a random share of those that passed, as in
	// "sample 1%"), all or off. In a zone the default is that of the middleware. If several
	// limits are on a request, the one that records the most counts. A value other than off
	// turns the history on, which needs Postgres. Default denied with a history, else off.
	Audit string `json:"audit,omitempty"`

	// History records what happens to requests: an audit log, metrics by minute, hour and
	// day, and the usage of users and API keys. Default: only with an Audit.
	History []History `json:"history,omitempty"`

	// Policy applies the rules in the database to the same requests: what it says and all
	// limits here are decided together. With a policy there may be no limit here.
	Policy []Policy `json:"policy,omitempty"`

	// Zones are further limits on the same request: it passes only if all limits have
	// room, and is charged to all of them or to none.
	Zones []Zone `json:"zones,omitempty"`

	// Timeout is for the whole decision on a request. Default 250ms.
	Timeout string `json:"timeout,omitempty"`

	// OnError is what happens to a request if there is no decision in time: allow lets
	// it pass, deny refuses it with status 503. Default allow.
	OnError string `json:"onError,omitempty"`

	// Headers says which X-RateLimit headers a response has if the upstream sends some,
	// too: those of the limit (ours), those that tell of less remaining (tighter), or all
	// of them (both). Default ours. Both takes the least time.
	Headers string `json:"headers,omitempty"`

	// IPStrategy defines {client_ip}, as in Traefik's own sourceCriterion. Default:
	// the address of the connection.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`
}

// Zone is one limit. Its fields are Config's of the same names.
type Zone struct {
	Prefix            string `json:"prefix,omitempty"`
	Key               string `json:"key,omitempty"`
	Algorithm         string `json:"algorithm,omitempty"`
	Limit             string `json:"limit,omitempty"`
	Burst             string `json:"burst,omitempty"`
	Cost              string `json:"cost,omitempty"`
	MinCost           string `json:"minCost,omitempty"`
	Durable           string `json:"durable,omitempty"`
	SynchronousCommit string `json:"synchronousCommit,omitempty"`
	Lease             string `json:"lease,omitempty"`
	HashKey           string `json:"hashKey,omitempty"`
	IPv4Prefix        string `json:"ipv4Prefix,omitempty"`
	IPv6Prefix        string `json:"ipv6Prefix,omitempty"`
	Ban               string `json:"ban,omitempty"`
	Audit             string `json:"audit,omitempty"`
}

// History is what is recorded of requests, and for how long. Requests do not wait for it.
type History struct {
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
}

// Policy applies the rules in the database: which limits apply to whom is data there, and all
// proxies obey a change within Refresh. It needs Postgres 15 or newer.
type Policy struct {
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
}

// CreateConfig returns the defaults.
func CreateConfig() *Config {
	return &Config{}
}
