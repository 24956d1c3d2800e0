package caddymodule_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// place matches the position in an error.
var place = regexp.MustCompile(`, at Caddyfile:\d+`)

// The error about an invalid Caddyfile has the setting, its value, the valid values, and the line.
// testdata/refused.txt has each form of a setting and of an error once, as a Caddyfile and a part of the
// error, because package settings tests the valid values of each setting.
func TestInvalidCaddyfilesAreRejected(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	cases, err := os.ReadFile("testdata/refused.txt")
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.SplitSeq(strings.TrimSpace(string(cases)), "\n\n") {
		config, want, _ := strings.Cut(one, "\n! ")
		adapted, err := adapt(config + "\n")
		if err == nil {
			err = validate(adapted)
		} else if !place.MatchString(err.Error()) {
			t.Errorf("%s\nthe error is %v, want one with a line", config, err)
		}
		checkRejected(t, config, err, want)
	}
}

// checkRejected checks that err is about a config, contains want, and has no password.
func checkRejected(t *testing.T, config string, err error, want string) {
	t.Helper()
	got := fmt.Sprint(err)
	if !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
		t.Errorf("%s\nthe error is\n%s\nwant\n%s", config, got, want)
	}
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
		checkRejected(t, test.handler, validate(configOf(test.handler)), test.want)
	}
	two := `"prefix": "api", "dsn": "memory", "limit": "5 5s"}, {"handler": "pg_ratelimit", ` +
		`"prefix": "api", "dsn": "memory", `
	for _, other := range []string{`"limit": "50 1h"`, `"limit": "5 5s", "algorithm": "fixed_window"`} {
		checkRejected(t, other, validate(configOf(two+other)), `pg_ratelimit "api": prefix: "api": must be `+
			"another name, because the handler number 2 has ")
	}
	for _, other := range []string{`"limit": "7 5000ms"`, `"limit": "50 1h", "durable": true`,
		`"limit": "50 1h", "mode": "off"`} {
		if err := validate(configOf(two + other)); err != nil {
			t.Errorf("%s beside 5 5s: %v, want a valid configuration", other, err)
		}
	}
	for _, test := range []struct{ app, want string }{
		{`"history": {"audit_address": "half"}`,
			`history: audit_address: "half": must be full, prefix or off`},
	} {
		checkRejected(t, test.app, validate([]byte(`{"apps": {"pg_ratelimit": {`+test.app+`}}}`)), test.want)
	}
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	checkRejected(t, "the environment", validate([]byte(`{"apps": {"pg_ratelimit": {"dsn": "memory"}}}`)),
		`environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE: "perhaps": must be true or false`)
}
