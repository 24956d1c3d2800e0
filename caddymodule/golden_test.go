package caddymodule_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

var update = flag.Bool("update", false, "write the JSON of the golden cases anew")

// adapt turns a Caddyfile into JSON.
func adapt(caddyfile string) ([]byte, error) {
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("warnings: %v", warnings)
	}
	return adapted, err
}

// validate sets up a config and takes it down, as `caddy validate` does.
func validate(config []byte) error {
	var parsed *caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &parsed); err != nil {
		return err
	}
	parsed.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{
		"default": {BaseLog: caddy.BaseLog{WriterRaw: []byte(`{"output": "discard"}`)}},
	}}
	return caddy.Validate(parsed)
}

// Each case is a Caddyfile, a line of dashes, and its JSON (which must load) or its error.
func TestGolden(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_TEST", "postgres://user@localhost/db")
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, want, found := strings.Cut(string(text), "----------\n")
			if !found {
				t.Fatal("no line of dashes")
			}
			want = strings.TrimSpace(want)
			adapted, err := adapt(caddyfile)
			if strings.HasPrefix(filepath.Base(file), "error_") {
				checkRefused(t, adapted, err, want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				var pretty bytes.Buffer
				if err := json.Indent(&pretty, adapted, "", "\t"); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(caddyfile+"----------\n"+pretty.String()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got, want := compact(t, adapted), compact(t, []byte(want)); got != want {
				t.Errorf("adapted to\n%s\nwant\n%s", got, want)
			}
			if err := validate(adapted); err != nil {
				t.Errorf("does not load: %v", err)
			}
		})
	}
}

var place = regexp.MustCompile(`, at Caddyfile:\d+`)

// checkRefused checks the error of a Caddyfile that cannot be adapted or loaded.
func checkRefused(t *testing.T, adapted []byte, err error, want string) {
	t.Helper()
	if err == nil {
		if err = validate(adapted); err == nil {
			t.Fatalf("loads; want the error %s", want)
		}
	} else if !place.MatchString(err.Error()) {
		t.Errorf("the error names no line: %v", err)
	}
	if want == "" || !strings.Contains(err.Error(), want) {
		t.Errorf("error is\n%v\nwant\n%s", err, want)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error holds the password: %v", err)
	}
}

func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return b.String()
}

// JSON does not go through the parser of Caddyfiles, so the module checks it as well.
func TestWrongJSONIsRefused(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, c := range []struct{ handler, want string }{
		{`"prefix": "demo"`, `pg_ratelimit "demo": limit: missing: must be a whole number of events`},
		{`"limit": "100 1m"`, `pg_ratelimit: prefix: missing: must be a name of 1 to 255 bytes`},
		{`"dsn": "memory"`, `pg_ratelimit: limit: missing: must be a whole number of events`},
		{`"prefix": "de\u0000mo", "limit": "1 1m"`, `prefix: "de\x00mo": must be a name of 1 to 255 bytes of UTF-8 without NUL`},
		{`"prefix": "demo", "limit": "0 1m"`, `pg_ratelimit "demo": limit: "0 1m": must be a whole number of events`},
		{`"prefix": "demo", "limit": "100 0s"`, `limit: "100 0s": must be a window from 1ms`},
		{`"prefix": "demo", "limit": "100 1m", "algorithm": "none"`, `algorithm: "none": must be one of sliding_window,`},
		{`"prefix": "demo", "limit": "100 1m", "algorithm": "token_bucket", "burst": -1`, `burst: "-1": must be a whole number from 1`},
		{`"prefix": "demo", "limit": "1 1h", "algorithm": "gcra", "burst": 0`, `burst: "0": must be a whole number from 1 to 9007199254740992`},
		{`"prefix": "demo", "limit": "1 1h", "ipv4_prefix": 0`, `ipv4_prefix: "0": must be a whole number from 1 to 32`},
		{`"prefix": "demo", "limit": "1 1h", "ipv6_prefix": 0`, `ipv6_prefix: "0": must be a whole number from 1 to 128`},
		{`"prefix": "demo", "limit": "100 1m", "burst": 5`, `burst: "5": must be left out: sliding_window has none`},
		{`"prefix": "demo", "limit": "100 1m", "cost": "0"`, `cost: "0": must be a whole number from 1 to 9007199254740992, or a placeholder that gives one`},
		{`"prefix": "demo", "limit": "100 1m", "cost": "{header.X}", "min_cost": -1`, `min_cost: "-1": must be a whole number from 0`},
		{`"prefix": "demo", "limit": "100 1m", "cost": "2", "min_cost": 0`, `min_cost: "0": must be left out: cost is not a placeholder`},
		{`"prefix": "demo", "limit": "100 1m", "max_keys": 0`, `max_keys: "0": must be a whole number from 1 to 10000000`},
		{`"prefix": "demo", "limit": "5", "algorithm": "in_flight", "max_keys": 1000`, `max_keys: "1000": must be left out with in_flight: no row with slots is deleted`},
		{`"prefix": "demo", "limit": "100 1m", "durable": true, "max_keys": 1000`, `max_keys: "1000": must be left out with durable: what durable limits have counted is not deleted. Put a zone with a coarser key, such as a network, in front`},
		{`"prefix": "demo", "limit": "100 1m", "key": "{nope}"`, `key: "{nope}": must be text with placeholders such as {client_ip} or {header.X-User}: {nope} is none`},
		{`"prefix": "demo", "limit": "100 1m", "key": "a{client_ip"`, `key: "a{client_ip": must be text with placeholders`},
		{`"prefix": "demo", "limit": "100 1m", "key": "{client_ip}{http.request.remot.host}"`, `: {http.request.remot.host} is none`},
		{`"prefix": "demo", "limit": "100 1m", "cost": "{files}"`, `cost: "{files}": must be text with placeholders`},
		{`"prefix": "demo", "limit": "100 1m", "ipv4_prefix": -1`, `ipv4_prefix: "-1": must be a whole number from 1 to 32`},
		{`"prefix": "demo", "limit": "100 1m", "ipv6_prefix": 129`, `ipv6_prefix: "129": must be a whole number from 1 to 128`},
		{`"prefix": "demo", "limit": "100 1m", "timeout": "2m"`, `timeout: "2m": must be a duration from 1ms to 1m`},
		{`"prefix": "demo", "limit": "100 1m", "timeout": -1`, `timeout: "-1": must be a duration from 1ms to 1m`},
		{`"prefix": "demo", "limit": "100 1m", "headers": "none"`, `headers: "none": must be auto, ours, tighter or both`},
		{`"prefix": "demo", "limit": "100 1m", "on_error": "maybe"`, `on_error: "maybe": must be allow, deny or local`},
		{`"prefix": "demo", "limit": "100 1m"`, `pg_ratelimit "demo": dsn: missing: must be a Postgres URL or key=value pairs, or memory: here, in the global option`},
		{`"prefix": "demo", "limit": "100 1m", "dsn": "garbage"`, `dsn: "garbage": must be a Postgres URL or key=value pairs`},
		{`"zones": [{"prefix": "api", "limit": "0 1m"}]`, `pg_ratelimit: zone "api": limit: "0 1m": must be a whole number`},
		{`"prefix": "demo", "limit": "100 1m", "zones": [{"limit": "5 1m"}]`, `pg_ratelimit "demo": zone 1: prefix: missing: must be a name`},
		{`"zones": [null]`, `zone 1: null: must be an object`},
		{`"zones": [{"prefix": "api", "limit": "5 1m"}, {"prefix": "api", "limit": "6 1m"}]`, `zone "api": prefix: "api": must be another name`},
		{`"zones": [{"prefix": "api", "limit": "5 1m", "match": [{"colour": {}}]}]`, `zone "api": match: `},
		{`"policy": {"api_key": "X-Api-Key"}`, `policy: api_key: "X-Api-Key": must be text with a placeholder`},
		{`"policy": {"unknown_key": "allow"}`, `policy: unknown_key: "allow": must be reject or anonymous`},
		{`"policy": {"refresh": "2m"}`, `policy: refresh: "2m": must be a duration from 50ms to 1m`},
		{`"policy": {"max_identities": -1}`, `policy: max_identities: "-1": must be a whole number from 1 to 10000000`},
		{`"policy": {"apiKey": "{header.X}"}`, `unknown field "apiKey"`},
		{`"policy": {}, "dsn": "memory"`, `dsn: "memory": must be a Postgres URL or key=value pairs: the rules of a policy are in Postgres`},
		{`"policy": {}, "zones": [{"prefix": "ban/x", "limit": "5 1m"}]`, `zone "ban/x": prefix: "ban/x": must be a name that does not begin with ban/`},
		{`"zones": [{"prefix": "api", "limit": "5 1m", "ban": "1h after 10 refusals in 1m"}]`, `zone "api": ban: "1h after 10 refusals in 1m": must be left out, or used with a policy`},
		{`"prefix": "demo", "limit": "100 1m", "policy": {}, "ban": "1s after 10 refusals in 0s"`, `ban: "1s after 10 refusals in 0s": must be a ban such as`},
		{`"audit": "most"`, `pg_ratelimit: audit: "most": must be off, denied, all, or sample`},
		{`"zones": [{"prefix": "api", "limit": "5 1m", "audit": "sample 2"}]`, `zone "api": audit: "sample 2": must be off, denied, all, or sample`},
		{`"prefix": "demo", "limitt": "100 1m"`, `unknown field "limitt"`},
		{`"prefix": "demo", "limit": "100 1m", "burst": [5]`, `burst of type string`},
	} {
		t.Run(c.handler, func(t *testing.T) {
			err := validate([]byte(`{"apps": {"http": {"servers": {"s": {"listen": [":8080"], "routes": [{"handle": [{"handler": "pg_ratelimit", ` + c.handler + `}]}]}}}}}`))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is\n%v\nwant\n%s", err, c.want)
			}
		})
	}
	for _, c := range []struct{ app, want string }{
		{`"max_conns": -1`, `max_conns: "-1": must be a whole number from 1 to 1000`},
		{`"max_conns": 0`, `max_conns: "0": must be a whole number from 1 to 1000`},
		{`"max_blocked_keys": 0`, `max_blocked_keys: "0": must be a whole number from 1 to 10000000`},
		{`"max_leases": 0`, `max_leases: "0": must be a whole number from 1 to 1000000`},
		{`"max_conns": 1001`, `max_conns: "1001": must be a whole number from 1 to 1000`},
		{`"history": {"node": "a\nb"}`, `node: "a\nb": must be a name of 1 to 100 bytes`},
		{`"history": {"audit_address": "half"}`, `history: audit_address: "half": must be full, prefix or off`},
		{`"history": {"retention": {"metrics_day": "7 years"}}`, `history: retention: metrics_day: "7 years": must be a duration from 1d to 100y`},
		{`"cleanup_probability": 2`, `cleanup_probability: "2": must be a number from 0 to 1`},
	} {
		t.Run(c.app, func(t *testing.T) {
			err := validate([]byte(`{"apps": {"pg_ratelimit": {` + c.app + `}}}`))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is\n%v\nwant\n%s", err, c.want)
			}
		})
	}
}

// JSON may have a setting as a number or as true, and null is a setting that was left out.
func TestJSONHasSettingsInTheirTypes(t *testing.T) {
	const handler = `{"handler": "pg_ratelimit", "dsn": "memory", "prefix": "a", "limit": "9 1m", "algorithm": "token_bucket", "burst": 5, "ipv4_prefix": 24, "hash_key": true, "timeout": "1s", "lease": null}`
	if err := validate([]byte(`{"apps": {"http": {"servers": {"s": {"listen": [":8080"], "routes": [{"handle": [` + handler + `]}]}}}}}`)); err != nil {
		t.Error(err)
	}
}

func TestMigrationSwitchIsChecked(t *testing.T) {
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	err := validate([]byte(`{"apps": {"pg_ratelimit": {"dsn": "memory"}}}`))
	want := `environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE: "perhaps": must be true or false`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is\n%v\nwant\n%s", err, want)
	}
}

// Every JSON field that a Caddyfile can set, and every subdirective, occurs in
// the golden cases that load.
func TestGoldenCasesAreComplete(t *testing.T) {
	var all strings.Builder
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "error_") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, setting := range slices.Concat(edge.LimitTable, edge.HandlerTable, edge.PolicyTable, edge.StoreTable, edge.HistoryTable, edge.PageTable,
		edge.HistoryTable[len(edge.HistoryTable)-1].Settings, []edge.Setting{{Name: "match"}}) {
		name := setting.Name
		if !strings.Contains(all.String(), "\t"+name) || !strings.Contains(all.String(), `"`+name+`":`) {
			t.Errorf("no case has %s", name)
		}
	}
}
