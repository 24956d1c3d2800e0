package caddymodule_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// adapt converts a Caddyfile to JSON.
func adapt(caddyfile string) ([]byte, error) {
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile),
		map[string]any{"filename": "Caddyfile"})
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("warnings: %v", warnings)
	}
	return adapted, err
}

// validate provisions a config without starting it, as `caddy validate` does.
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

// Each case is a file with a Caddyfile, a line of dashes, and the JSON that it adapts to.
func TestCaddyfileAdaptsToJSONThatLoads(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_TEST", "postgres://user@localhost/db")
	golden.ReplayAll(t, "testdata/*.caddyfiletest", func(t *testing.T, text string) string {
		caddyfile, _, _ := strings.Cut(text, "----------\n")
		adapted, err := adapt(caddyfile)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(adapted); err != nil {
			t.Errorf("validating: error %v, want nil", err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, adapted, "", "\t"); err != nil {
			t.Fatal(err)
		}
		return caddyfile + "----------\n" + pretty.String() + "\n"
	})
}
