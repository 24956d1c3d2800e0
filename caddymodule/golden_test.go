package caddymodule_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

var update = flag.Bool("update", false, "write the JSON of the golden cases again")

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
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d cases and error %v, want some", len(files), err)
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
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				var pretty bytes.Buffer
				if err := json.Indent(&pretty, adapted, "", "\t"); err != nil {
					t.Fatal(err)
				}
				text := caddyfile + "----------\n" + pretty.String() + "\n"
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got, want := compact(t, adapted), compact(t, []byte(want)); got != want {
				t.Errorf("adapted to\n%s\nwant\n%s", got, want)
			}
			if err := validate(adapted); err != nil {
				t.Errorf("validating: error %v, want nil", err)
			}
		})
	}
}

// compact returns JSON without white space.
func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return b.String()
}
