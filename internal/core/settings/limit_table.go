package settings

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// LimitTable has the settings of a limit. The first is the prefix, an argument in a Caddyfile.
var LimitTable = []Setting{{
	Name: "prefix", Args: "one name", Syntax: "<name>",
	Help: "The name of the limit. Limits with one prefix on one database share their counters, in all " +
		"proxies.",
	Default: "required if there is a `limit`",
	Read: func(to *Settings, text string) error {
		to.Limit.Limit.Prefix = text
		return nil
	},
}, {
	Name: "key", Form: Words, Args: "one text, with or without placeholders",
	Syntax:  "<text with placeholders> [| <text with placeholders>]…",
	Help:    "Requests with the same [key](caddy.md#keys) share the quota. It can have alternatives.",
	Default: "`{client_ip}`",
	Read:    readKey,
}, {
	Name: "algorithm", Args: "the name of one algorithm", Syntax: "sliding_window | fixed_window | " +
		"token_bucket | sliding_log | gcra | in_flight",
	Help: "`sliding_window`, `fixed_window`, `token_bucket`, `sliding_log`, `gcra` or `in_flight`: " +
		"[algorithms](algorithms.md).",
	Default: "`sliding_window`",
	Read: func(to *Settings, text string) (err error) {
		to.Limit.Limit.Algorithm, err = ratelimit.ParseAlgorithm(text)
		return err
	},
}, {
	Name: "limit", Form: Words, Syntax: "<events> <window> [calendar [<time zone>]] | <requests in flight>",
	Help: "`100 1m` or `100/1m`: 100 events a minute. A `fixed_window` may follow the " +
		"[calendar](algorithms.md#calendar-windows): `10000 1mo calendar Europe/Berlin`. For " +
		"[in_flight](algorithms.md#in_flight): `5`.",
	Default:  "required, here or in a zone",
	Validate: readRate,
}, {
	Name: "burst", Args: "one whole number", Want: "a whole number from 1 to 9007199254740992",
	Syntax: "<capacity>",
	Help: "For `token_bucket`, the capacity; below the events of `limit`, the bucket is refilled " +
		"evenly. For `gcra`, how many events may pass at once.",
	Default: "the events of `limit`",
	Read:    readBurst,
}, {
	Name: "cost", Args: "one whole number, or a placeholder that gives one",
	Syntax: "<whole number or placeholder>",
	Want:   "a whole number from 1 to 9007199254740992, or a placeholder that gives one",
	Help: "What a request takes of the quota: a whole number of 1 or more, or a " +
		"[placeholder](caddy.md#cost).",
	Default: "1",
	Read:    readCost, Unset: "1",
}, {
	Name: "settle", Form: Words, Args: wantSettle, Want: wantSettle, Syntax: "header <name> | bytes | json " +
		"<path> | status <statuses> = <cost>, else <cost>",
	Help:    "What a request really cost, by its [response](caddy.md#cost-after-the-answer).",
	Default: "what it was charged",
	Read:    readSettle, Validate: checkSettle,
}, {
	Name: "durable", Form: Switch,
	Help:    "Count in the logged table, which survives a crash of the database server.",
	Default: "off",
	Read:    onOff(func(to *Settings) *bool { return &to.Limit.Limit.Durable }),
}, {
	Name: "synchronous_commit", Form: Switch,
	Help:    "With `durable`: wait until the decision is on the disk of the database server.",
	Default: "off",
	Read:    onOff(func(to *Settings) *bool { return &to.Limit.Limit.SynchronousCommit }),
}, {
	Name: "lease", Want: "a share of what is left from 0.1% to 50%, such as 5%", Syntax: "<percentage>",
	Help:    "Charge this share of what is left in [advance](leases.md): 0.1% to 50%.",
	Default: "none",
	Read:    readLease, Unset: "off",
}, {
	Name: "hash_key", Form: Switch,
	Help:    "Store [keys](caddy.md#keys) as SHA-256 digests. Proxies that share counters must agree.",
	Default: "on if the key contains a credential",
	Read: func(to *Settings, text string) error {
		hash, err := ParseSwitch("", text)
		if text != "" {
			to.Limit.HashKey = &hash
		}
		return err
	},
}, {
	Name: "ipv4_prefix", Want: "a whole number from 1 to 32", Syntax: "<bits>",
	Help:    "How many bits of an IPv4 address in the key count: 1 to 32.",
	Default: "all of them",
	Read:    number(allIPv4, func(to *Settings) *int { return &to.Limit.IPv4 }), Unset: "32",
}, {
	Name: "ipv6_prefix", Want: WantIPv6Prefix, Syntax: "<bits>",
	Help:    "The same for IPv6: 1 to 128. One client often has a whole /64.",
	Default: "64",
	Read:    number(128, func(to *Settings) *int { return &to.Limit.IPv6 }), Unset: "64",
}, {
	Name: "audit", Form: Words, Args: "off, denied, all, or sample and a percentage",
	Syntax:  "off | denied | all | sample <percentage>",
	Help:    "Which requests are in the [audit log](caddy.md#audit).",
	Default: "`denied` with a `history`, else `off`",
	Read: func(_ *Settings, text string) error {
		_, err := ParseAudit(text, Audit{})
		return err
	},
}, {
	Name: "mode", Want: "enforce, shadow or off",
	Read: readMode, Unset: "enforce", Syntax: "enforce | shadow | off",
	Help: "`shadow` counts, reports what it would have refused, and refuses nothing; `off` does not " +
		"count.",
	Default: "`enforce`",
}}
