package settings

import "time"

// HandlerTable has the settings of a handler or a middleware that do not belong to one limit. Adapters have
// further ones, such as zones.
var HandlerTable = []Setting{
	dsnSetting,
	{
		Name: "timeout", Args: "one duration, such as 250ms", Syntax: "<duration>",
		Want: "a duration from 1ms to 1m", Duration: true, Read: readTimeout, Unset: "250ms",
		Help: "How long the database may take for a statement: 1ms to 1m. While it answers, a request " +
			"waits for [up to four](operating.md#when-there-is-no-decision).",
		Default: "250ms",
	}, {
		Name: "on_error", Want: "allow, deny or local", Read: readOnError, Unset: "allow",
		Syntax: "allow | deny | local",
		Help: "A request without a decision: `allow` lets it pass, `deny` answers 503, and with `local` " +
			"the proxy [decides by itself](operating.md#the-proxy-limits-by-itself).",
		Default: "`allow`",
	}, {
		Name: "fields", Form: Words, Want: "x, ietf, or x ietf", Read: readFields, Unset: "x",
		Syntax: "x | ietf | x ietf",
		Help: "Which [fields](caddy.md#what-the-client-sees) describe the limits: `X-RateLimit-*` " +
			"(`x`), `RateLimit` and `RateLimit-Policy` (`ietf`), or both (`x ietf`).",
		Default: "`x`",
	}, {
		Name: "exempt", Form: Words, Args: wantExempt, Want: wantExempt, Read: readExempt,
		Syntax: "<networks>",
		Help: "Limits of the configuration do [not count](caddy.md#exemptions) requests from these " +
			"networks and addresses.",
		Default: "none",
	}, {
		Name: "policy", Form: Block, Args: "a block, or nothing", Settings: PolicyTable,
		Help:    "Apply the [rules in the database](policy.md).",
		Default: "none",
	},
}

// dsnSetting is a DSN. Its help differs between the proxies.
var dsnSetting = Setting{
	Name:   "dsn",
	Form:   Words,
	Args:   WantDSN,
	Syntax: "<postgres URL, key=value pairs, or memory>",
}

// databaseOf returns the setting of the DSN of a part that may be on another server than the counters.
func databaseOf(part string) Setting {
	return Setting{
		Name: "dsn", Form: Words, Args: WantPostgres, Syntax: "<postgres URL or key=value pairs>",
		Help:    "The database of the " + part + ", if it is [another one](regions.md#several-servers).",
		Default: "that of the limits",
	}
}

// shownDSN returns the setting of the DSN of a part that a page shows.
func shownDSN(part string) Setting {
	return Setting{
		Name: part, Form: Words, Args: WantPostgres, Syntax: "<postgres URL or key=value pairs>",
		Help:    "The database of the " + part + ", if it is another one.",
		Default: "that of the first `pg_ratelimit` handler of this Caddy with the same `dsn`",
	}
}

// PolicyTable has the settings of a policy.
var PolicyTable = []Setting{databaseOf("policy"), {
	Name: "api_key", Args: "one text with a placeholder", Syntax: "<text with placeholders>",
	Help:    "The API key of a request: text with a placeholder. \"Bearer \" at its beginning is cut off.",
	Default: "requests have no key",
}, {
	Name: "user", Args: "one text with a placeholder", Syntax: "<text with placeholders>",
	Help: "The user of a request without an API key: text with a placeholder that clients cannot set, " +
		"such as Caddy's `{http.auth.user.id}`.",
	Default: "nobody",
}, {
	Name: "tier", Args: "one name, or a placeholder that gives one", Syntax: "<name or placeholder>",
	Help:    "The tier of requests that have no other one: a name or a placeholder.",
	Default: "`anonymous`",
}, {
	Name: "unknown_key", Want: "reject or anonymous", Read: readUnknownKey, Unset: "reject",
	Syntax: "reject | anonymous",
	Help: "A request with an unknown, expired or revoked API key: `reject` answers 401, `anonymous` " +
		"ignores the key.",
	Default: "`reject`",
}, {
	Name: "route", Args: "one name, or a placeholder that gives one", Syntax: "<name or placeholder>",
	Help:    "The name of the route, for rules that count by route: a name or a placeholder.",
	Default: "none",
}}

// PageTable has the settings of a page. Only Caddy has one.
var PageTable = []Setting{
	dsnSetting, shownDSN("policy"), shownDSN("history"),
	{
		Name: "hosts", Form: Words, Args: "one or more host names", Syntax: "<names>",
		Help: "Names under which the page is reached, besides addresses, localhost and the names of its " +
			"site.",
		Default: "none",
	}, {
		Name: "insecure", Form: Switch,
		Read: onOff(func(to *Settings) *bool { return &to.Page.Insecure }), Unset: "off",
		Help:    "Serve it although nothing in front of it keeps strangers out.",
		Default: "off",
	},
}

// StoreTable has the settings of a store.
var StoreTable = []Setting{
	dsnSetting,
	{
		Name: "max_conns", Want: "a whole number from 1 to 1000",
		Read:    number(1000, func(to *Settings) *int { return &to.Store.MaxConns }),
		Help:    "Connections to each database: 1 to 1000.",
		Default: "the DSN's `pool_max_conns`, else 8",
	}, {
		Name: "auto_migrate", Form: Switch,
		Read: onOff(func(to *Settings) *bool { return &to.Store.AutoMigrate }), Unset: "on",
		Help: "`off`, or `PG_RATELIMIT_DISABLE_AUTO_MIGRATE=true` in the environment: you create the " +
			"tables yourself.",
		Default: "on",
	}, {
		Name: "cleanup_probability", Want: "a number from 0 to 1", Read: readProbability, Unset: "0.1",
		Help:    "How likely a [cleanup](operating.md#cleanup-and-vacuum) follows a statement: 0 to 1.",
		Default: "0.1",
	}, {
		Name: "in_memory_block", Form: Switch,
		Read: onOff(func(to *Settings) *bool { return &to.Store.InMemoryBlock }), Unset: "on",
		Help:    "Refuse without asking the database if a key is known to be used up.",
		Default: "on",
	}, {
		Name: "node_name", Args: "one name, or a placeholder that gives one",
		Want: wantNodeName, Read: nodeName(func(to *Settings) *string { return &to.Store.NodeName }),
		Help: "The name of this proxy in the [registry](operating.md#the-registry-of-proxies). Give " +
			"each of several proxies on one host its own.",
		Default: "the host name and `/caddy` or `/traefik`",
	}, {
		Name: "region", Args: "one name, or a placeholder that gives one",
		Want: wantNodeName, Read: nodeName(func(to *Settings) *string { return &to.Store.Region }),
		Help:    "Where this proxy runs, for the registry and the history, up to 100 bytes.",
		Default: "none",
	}, {
		Name: "history", Form: Block, Args: "a block, or nothing", Settings: HistoryTable,
		Help:    "[Record](operating.md#audit-log) what happens to requests.",
		Default: "off",
	},
}

// HistoryTable has the settings of a history.
var HistoryTable = []Setting{databaseOf("history"), {
	Name: "audit_address", Want: "full, prefix or off", Read: readAddressMode, Unset: "full",
	Help: "How much of a client's address is in the audit log: `full`, `prefix` (the /24 of an IPv4 " +
		"address, the /48 of an IPv6 address) or `off`. " +
		"It applies to addresses in keys too.",
	Default: "`full`",
}, {
	Name: "retention", Form: Block, Args: "a block", Settings: RetentionTable,
}}

// RetentionTable has a setting for each part of the history.
var RetentionTable = []Setting{
	retentionSetting("audit", func(to *Settings) *time.Duration { return &to.History.KeepAudit }),
	retentionSetting("usage", func(to *Settings) *time.Duration { return &to.History.KeepUsage }),
}

// retentionSetting returns the setting of how long a part of the history is kept.
func retentionSetting(name string, field func(*Settings) *time.Duration) Setting {
	return Setting{
		Name:     name,
		Args:     "one duration, such as 90d or 7y",
		Want:     "a duration from 1d to 100y, such as 90d, 12w or 7y",
		Duration: true, Read: retention(field),
	}
}
