package caddymodule_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// wrongCaddyfiles have one mistake each, which want describes.
var wrongCaddyfiles = []struct{ caddyfile, want string }{
	// A word, several words, a switch, and a block.
	{handler("limit 100 1m", "timeout soon"),
		`timeout: "soon": must be a duration from 1ms to 1m, at Caddyfile:4`},
	{handler("limit 100 1m", "timeout"),
		`timeout: missing: must be one duration, such as 250ms, at Caddyfile:4`},
	{handler("limit 100 1m", "algorithm gcra fixed_window"),
		`algorithm: "gcra fixed_window": must be the name of one algorithm, at Caddyfile:4`},
	{handler("limit 100 1m", `key ""`),
		`key: missing: must be one text, with or without placeholders, at Caddyfile:4`},
	{handler("limit 100 1m", "durable maybe"),
		`durable: "maybe": must be on or off, or nothing, which is on, at Caddyfile:4`},
	{handler("limit 100 1m {", "burst 5", "}"), `subdirective: "{": must be one of algorithm, audit, `},
	{handler("policy all"), `policy: "all": must be a block, or nothing, at Caddyfile:3`},
	{handler("limit 100 1m", "limitt 100 1m"),
		`subdirective: "limitt": must be one of algorithm, audit, `},
	{handler("limit 100 1m", "durable", "durable on"),
		`durable: given twice: must be given once, and is on line 4 already, at Caddyfile:5`},
	// An error about the whole limit has the line of its setting, or else that of the directive.
	{handler("limit 100 1d calendar"),
		`algorithm: "sliding_window": must be fixed_window for a limit on the calendar, at Caddyfile:2`},
	{handler("dsn memory"), `limit: missing: must be a whole number of events`},
	{handler("limit 100 1m", "key {client}"),
		`key: "{client}": must be text with placeholders such as {client_ip} or {header.X-User}: ` +
			`{client} is none`},
	// The prefix is an argument, or a setting.
	{"example.com {\npg_ratelimit {\nlimit 100 1m\n}\n}",
		`prefix: missing: must be a name of 1 to 255 bytes of UTF-8 without NUL, at Caddyfile:2`},
	{handler("limit 100 1m", "prefix other"),
		`prefix: "other": must be left out, or the same as the argument "demo", at Caddyfile:4`},
	{"(limited) {\npg_ratelimit demo {\nlimit {args[0]} 1m\n}\n}\nexample.com {\nimport limited 0\n}",
		`limit: "0 1m": must be a whole number of events`},
	// A DSN is checked when the config loads, and no error has its password.
	{handler("limit 100 1m"), `pg_ratelimit "demo": dsn: missing: must be a Postgres URL or key=value ` +
		`pairs, or memory: here, in the global option pg_ratelimit, or in the environment variable ` +
		`DATABASE_URL`},
	{handler("limit 100 1m", "dsn postgres://user:hunter2@host:port/db"),
		`pg_ratelimit "demo": dsn: "postgres://…": must be a Postgres URL or key=value pairs: `},
	{handler("limit 100 1m", "dsn {env.NOT_SET_ANYWHERE}"),
		`pg_ratelimit "demo": dsn: "{env.NOT_SET_ANYWHERE}": must be a Postgres URL or key=value ` +
			`pairs, or memory: evaluated placeholder`},
	{handler("limit 100 1m", "dsn memory", "dsn postgres://user:hunter2@host/db"),
		`dsn: given twice: must be given once, and is on line 4 already, at Caddyfile:5`},
	{"example.com {\npg_ratelimit {\ndsn memory\npolicy\n}\n}",
		`dsn: "memory": must be a Postgres URL or key=value pairs: the rules of a policy are in ` +
			`Postgres`},
	// An error about a zone has its name.
	{handler("limit 100 1m", "zone api {", "limit 0 1m", "}"),
		`zone "api": limit: "0 1m": must be a whole number of events`},
	{handler("limit 100 1m", "zone api {", "limit 5 1m", "limit 6 1m", "}"),
		`zone "api": limit: given twice: must be given once, and is on line 5 already, at Caddyfile:6`},
	{handler("limit 100 1m", "zone {", "limit 5 1m", "}"),
		`zone: missing: must be one name, the zone's prefix, and a block, at Caddyfile:4`},
	{handler("zone api {", "limit 5 1m", "}"),
		`limit: missing: must be given here, or drop the prefix: the zones have limits of their own, ` +
			`at Caddyfile:2`},
	{handler("limit 100 1m", "zone api {", "limit 5 1m", "match", "}"),
		`zone "api": match: missing: must be a block of request matchers, at Caddyfile:6`},
	{handler("limit 100 1m", "zone api {", "limit 5 1m", "match @uploads", "}"),
		`zone "api": match: "@uploads": must be a block of request matchers, { … }, or one matcher, as ` +
			`in path /api/*: the matcher of a zone has no name, at Caddyfile:6`},
	{handler("limit 100 1m", "zone api {", "limit 5 1m", "match {", "colour green", "}", "}"),
		`zone "api": match: getting matcher module 'colour': module not registered: ` +
			`http.matchers.colour, at Caddyfile:8`},
	// One about a block has its name.
	{handler("policy {", "unknown_key allow", "}"),
		`policy: unknown_key: "allow": must be reject or anonymous, at Caddyfile:4`},
	{global("max_conns few"), `max_conns: "few": must be a whole number from 1 to 1000, at Caddyfile:3`},
	{global("min_conns 1"),
		`subdirective: "min_conns": must be one of auto_migrate, cleanup_probability, dsn, history, `},
	{"{\npg_ratelimit demo {\n}\n}",
		`pg_ratelimit: "demo": must be a block: a global option has no prefix, at Caddyfile:2`},
	{"{\npg_ratelimit {\n}\npg_ratelimit {\n}\n}",
		`pg_ratelimit: given twice: must be one global option, at Caddyfile:4`},
	{global("history {", "keep 90d", "}"),
		`history: subdirective: "keep": must be one of audit_address, dsn, `},
	{global("history {", "retention {", "audit 12h", "}", "}"),
		`history: retention: audit: "12h": must be a duration from 1d to 100y, such as 90d, 12w or 7y, ` +
			`at Caddyfile:5`},
	{global("node_name {env.NOT_SET_ANYWHERE}"),
		`node_name: "{env.NOT_SET_ANYWHERE}": must be a name, or placeholders that give one: `},
	{"example.com {\npg_ratelimit_page web\n}",
		`pg_ratelimit_page: "web": must be a block, or nothing, at Caddyfile:2`},
	{"example.com {\npg_ratelimit_page {\ndsn memory\n}\n}",
		`dsn: "memory": must be a Postgres URL or key=value pairs: counters in memory are only in ` +
			`the proxy`},
	{"example.com {\npg_ratelimit_page {\nhost limits\n}\n}",
		`subdirective: "host": must be one of dsn, history, hosts, `},
}

// A wrong Caddyfile is refused with the setting, what it holds, what it must be, and the line. What each
// setting must be is proven in package settings; these rows have each form of a setting and of an error once.
func TestWrongCaddyfilesAreRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, test := range wrongCaddyfiles {
		// there is a warning of another form
		adapted, err := adapt(string(caddyfile.Format([]byte(test.caddyfile))))
		if err == nil {
			err = validate(adapted)
		} else if !place.MatchString(err.Error()) {
			t.Errorf("%s\nthe error names no line: %v", test.caddyfile, err)
		}
		checkRefused(t, test.caddyfile, err, test.want)
	}
}

// handler is a Caddyfile with a handler. The lines of its block begin with line 3.
func handler(lines ...string) string {
	return "example.com {\npg_ratelimit demo {\n" + strings.Join(lines, "\n") + "\n}\n}\n"
}

// global is a Caddyfile with a global option and a handler. The lines of its block begin with line 3.
func global(lines ...string) string {
	return "{\npg_ratelimit {\n" + strings.Join(lines, "\n") +
		"\n}\n}\nexample.com {\npg_ratelimit demo {\nlimit 1 1m\n}\n}\n"
}

var place = regexp.MustCompile(`, at Caddyfile:\d+`)

// checkRefused checks the error of a config.
func checkRefused(t *testing.T, config string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%s\nthe error is\n%v\nwant\n%s", config, err, want)
	}
}

// JSON does not go through the parser of Caddyfiles, so the module checks it as well.
func TestWrongJSONIsRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "")
	for _, test := range []struct{ handler, want string }{
		{`"prefix": "demo"`, `pg_ratelimit "demo": limit: missing: must be a whole number of events`},
		{`"prefix": "demo", "limit": "100 1m", "burst": {"events": 5}`, `burst of type string`},
		{`"prefix": "demo", "limitt": "100 1m"`, `unknown field "limitt"`},
		{`"prefix": "demo", "limit": "100 1m", "key": "a{client_ip"`,
			`key: "a{client_ip": must be text with placeholders`},
		{`"prefix": "demo", "limit": "100 1m", "zones": [{"limit": "5 1m"}]`,
			`pg_ratelimit "demo": zone 1: prefix: missing: must be a name`},
		{`"zones": [null]`, `zone 1: null: must be an object`},
		{`"zones": [{"prefix": "api", "limit": "5 1m", "match": [{"colour": {}}]}]`, `zone "api": match: `},
		{`"policy": {"apiKey": "{header.X}"}`, `unknown field "apiKey"`},
	} {
		err := validate([]byte(`{"apps": {"http": {"servers": {"s": {"listen": [":8080"], "routes": ` +
			`[{"handle": [{"handler": "pg_ratelimit", ` + test.handler + `}]}]}}}}}`))
		checkRefused(t, test.handler, err, test.want)
	}
	for _, test := range []struct{ app, want string }{
		{`"history": {"audit_address": "half"}`,
			`history: audit_address: "half": must be full, prefix or off`},
	} {
		checkRefused(t, test.app, validate([]byte(`{"apps": {"pg_ratelimit": {`+test.app+`}}}`)), test.want)
	}
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	checkRefused(t, "the environment", validate([]byte(`{"apps": {"pg_ratelimit": {"dsn": "memory"}}}`)),
		`environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE: "perhaps": must be true or false`)
}

// JSON may have a setting as a number or as true, and null is a setting that was left out.
func TestJSONHasSettingsInTheirTypes(t *testing.T) {
	const handler = `{"handler": "pg_ratelimit", "dsn": "memory", "prefix": "a", "limit": "9 1m", ` +
		`"algorithm": "token_bucket", "burst": 5, "ipv4_prefix": 24, "hash_key": true, "timeout": "1s", ` +
		`"lease": null}`
	if err := validate([]byte(`{"apps": {"http": {"servers": {"s": {"listen": [":8080"], "routes": ` +
		`[{"handle": [` + handler + `]}]}}}}}`)); err != nil {
		t.Error(err)
	}
}
