package caddymodule_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var place = regexp.MustCompile(`, at Caddyfile:\d+`)

// A wrong Caddyfile is refused with the setting, what it holds, what it must be, and the line. What each
// setting must be is proven in package settings. testdata/refused.txt has each form of a setting and of an
// error once: a Caddyfile, and a part of the error.
func TestWrongCaddyfilesAreRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	text, err := os.ReadFile("testdata/refused.txt")
	if err != nil {
		t.Fatal(err)
	}
	for wrong := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		wrong, want, _ := strings.Cut(wrong, "\n! ")
		adapted, err := adapt(wrong + "\n")
		if err == nil {
			err = validate(adapted)
		} else if !place.MatchString(err.Error()) {
			t.Errorf("%s\nthe error names no line: %v", wrong, err)
		}
		checkRefused(t, wrong, err, want)
	}
}

// checkRefused checks the error of a config, which has no password.
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
