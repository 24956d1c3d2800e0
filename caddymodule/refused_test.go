package caddymodule_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

func TestInvalidCaddyfilesAreRejected(t *testing.T) {
	caddytest.CheckRejectedCaddyfiles(t, "testdata/refused.txt")
}

// configOf returns a configuration with a handler, of which it gets the fields.
func configOf(handler string) []byte {
	return []byte(`{"apps": {"http": {"servers": {"s": {"listen": [":8080"], "routes": ` +
		`[{"handle": [{"handler": "pg_ratelimit", ` + handler + `}]}]}}}}}`)
}

// JSON does not go through the parser of Caddyfiles, so the module also checks it.
func TestInvalidJSONIsRejected(t *testing.T) {
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
		caddytest.CheckRejected(t, test.handler, caddytest.Validate(configOf(test.handler)), test.want)
	}
	two := `"prefix": "api", "dsn": "memory", "limit": "5 5s"}, {"handler": "pg_ratelimit", ` +
		`"prefix": "api", "dsn": "memory", `
	for _, other := range []string{`"limit": "50 1h"`, `"limit": "5 5s", "algorithm": "fixed_window"`} {
		caddytest.CheckRejected(t, other, caddytest.Validate(configOf(two+other)),
			`pg_ratelimit "api": prefix: "api": must be `+
				"another name, because the handler number 2 has ")
	}
	for _, other := range []string{`"limit": "7 5000ms"`, `"limit": "50 1h", "durable": true`,
		`"limit": "50 1h", "mode": "off"`} {
		if err := caddytest.Validate(configOf(two + other)); err != nil {
			t.Errorf("%s beside 5 5s: %v, want a valid configuration", other, err)
		}
	}
	const app = `{"history": {"audit_address": "half"}}`
	caddytest.CheckRejected(t, app, caddytest.Validate([]byte(`{"apps": {"pg_ratelimit": `+app+`}}`)),
		`history: audit_address: "half": must be full, prefix or off`)
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	err := caddytest.Validate([]byte(`{"apps": {"pg_ratelimit": {"dsn": "memory"}}}`))
	caddytest.CheckRejected(t, "the environment", err,
		`environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE: "perhaps": must be true or false`)
}
