package settings

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// LimitTable has the settings of a limit. The first setting is the prefix, which is an argument of the zone
// in a Caddyfile.
var LimitTable = []Setting{
	{Name: "prefix", Want: "one name", Read: func(dst *Settings, text string) error {
		dst.Limit.Limit.Prefix = text
		return nil
	}},
	{Name: "key", Form: Words, Want: "one text, with or without placeholders", Read: readKey},
	oneOf("without_key", func(dst *Settings, text string) { dst.Limit.WithoutKey = option.Without(text) },
		"share", "skip", "refuse"),
	{Name: "algorithm", Want: "the name of one algorithm", Read: readAlgorithm},
	{Name: "limit", Form: Words, Read: readRate},
	oneOf("unit", func(dst *Settings, text string) { dst.Limit.Unit = option.Unit(text) },
		string(option.Requests), string(option.Tokens), string(option.InputTokens),
		string(option.OutputTokens)),
	number("output", ratelimit.MaxEvents, "", func(dst *Settings, n int64) { dst.Limit.Output = n }),
	number("burst", ratelimit.MaxEvents, "", func(dst *Settings, n int64) { dst.Limit.Limit.Burst = n }),
	{Name: "cost", Want: "a whole number from 1 to 9007199254740992, or a placeholder that gives one",
		Read: readCost, Unset: "1"},
	{Name: "settle", Form: Words, Want: option.WantSettle, Read: readSettle},
	onOff("durable", "off", func(dst *Settings) *bool { return &dst.Limit.Limit.Durable }),
	onOff("synchronous_commit", "off",
		func(dst *Settings) *bool { return &dst.Limit.Limit.SynchronousCommit }),
	{Name: "lease", Want: "a share of what is left from 0.1% to 50%, such as 5%",
		Read: readLease, Unset: "off"},
	{Name: "hash_key", Form: Switch, Read: readHashKey},
	number("ipv4_prefix", 32, "32", func(dst *Settings, n int64) { dst.Limit.IPv4 = int(n) }),
	number("ipv6_prefix", 128, "64", func(dst *Settings, n int64) { dst.Limit.IPv6 = int(n) }),
	{Name: "audit", Form: Words, Want: option.WantAudit, Read: checkAudit},
	oneOf("mode", func(dst *Settings, text string) { dst.Limit.Mode = option.Mode(text) },
		"enforce", "shadow", "off"),
}

// ZoneTable has the settings of a zone that its handler has otherwise.
var ZoneTable = []Setting{
	{Name: "fields", Want: "off", Read: func(dst *Settings, text string) error {
		dst.Limit.Hidden = option.Unquoted(text) == "off"
		if text != "" && !dst.Limit.Hidden {
			return errWant
		}
		return nil
	}},
}

// HandlerTable has the settings of a handler or a middleware that do not belong to one limit. An adapter has
// further settings of its own, such as zones.
var HandlerTable = []Setting{
	dsn("dsn", WantDSN),
	{Name: "timeout", Want: "a duration from 1ms to 1m", IsDuration: true, Read: readTimeout, Unset: "250ms"},
	oneOf("on_error", func(dst *Settings, text string) { dst.OnError = OnError(text) },
		"allow", "deny", "local"),
	oneOf("fields", func(dst *Settings, text string) {
		dst.Fields = Fields{X: strings.HasPrefix(text, "x"), IETF: strings.HasSuffix(text, "ietf")}
	}, "x", "ietf", "x ietf", "off"),
	{Name: "errors", Want: "text or object", Read: readErrors, Unset: ""},
	onOff("grpc", "on", func(dst *Settings) *bool { return &dst.GRPC }),
	{Name: "exempt", Form: Words, Want: wantExempt, Read: readExempt},
	{Name: "max_body", Want: wantSize, Read: readMaxBody},
	{Name: "max_bodies", Want: wantSize, Read: readMaxBodies},
	{Name: "policy", Form: Block, Settings: PolicyTable},
}

// PolicyTable has the settings of a policy. Other packages parse the settings without Read: the adapters
// parse dsn, and package serve parses the placeholders.
var PolicyTable = []Setting{
	dsn("dsn", WantPostgres),
	{Name: "api_key", Form: Words, Want: "one text with a placeholder, or alternatives of such texts",
		Read: func(_ *Settings, text string) error {
			_, err := ParseAlternatives(text)
			return err
		}},
	{Name: "user", Want: "one text with a placeholder"},
	{Name: "tier", Want: "one name, or a placeholder that gives one"},
	oneOf("unknown_key", func(dst *Settings, text string) { dst.RejectUnknown = text == "reject" },
		"reject", "anonymous"),
	{Name: "route", Want: "one name, or a placeholder that gives one"},
}

// PageTable has the settings of a page, which only the Caddy module serves.
var PageTable = []Setting{
	dsn("dsn", WantDSN),
	dsn("policy", WantPostgres),
	dsn("history", WantPostgres),
	{Name: "hosts", Form: Words, Want: "one or more host names"},
	onOff("insecure", "off", func(dst *Settings) *bool { return &dst.Insecure }),
}

// StoreTable has the settings of a store.
var StoreTable = []Setting{
	dsn("dsn", WantDSN),
	number("max_conns", 1000, "", func(dst *Settings, n int64) { dst.Store.MaxConns = int(n) }),
	onOff("auto_migrate", "on", func(dst *Settings) *bool { return &dst.Store.AutoMigrate }),
	{Name: "cleanup_probability", Want: "a number from 0 to 1", Read: readProbability, Unset: "0.1"},
	onOff("remembered_refusals", "on", func(dst *Settings) *bool { return &dst.Store.RememberedRefusals }),
	nodeName("node_name", func(dst *Settings) *string { return &dst.Store.NodeName }),
	nodeName("region", func(dst *Settings) *string { return &dst.Store.Region }),
	{Name: "history", Form: Block, Settings: HistoryTable},
}

// HistoryTable has the settings of a history.
var HistoryTable = []Setting{
	dsn("dsn", WantPostgres),
	oneOf("audit_address",
		func(dst *Settings, text string) { dst.History.Address = option.AddressMode(text) },
		"full", "prefix", "off"),
	{Name: "retention", Form: Block, Settings: RetentionTable},
}

// RetentionTable has a setting for each part of the history.
var RetentionTable = []Setting{
	retention("audit", "audit"),
	retention("usage", "metrics_day"),
}
