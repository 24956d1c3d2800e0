package caddytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// Adapt converts a Caddyfile to JSON.
func Adapt(text string) ([]byte, error) {
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text),
		map[string]any{"filename": "Caddyfile"})
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("warnings: %v", warnings)
	}
	return adapted, err
}

// Validate provisions a config without starting it, as `caddy validate` does.
func Validate(config []byte) error {
	var parsed *caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &parsed); err != nil {
		return err
	}
	parsed.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{
		"default": {BaseLog: caddy.BaseLog{WriterRaw: []byte(`{"output": "discard"}`)}},
	}}
	return caddy.Validate(parsed)
}

// CheckCaddyfiles compares the JSON of Caddyfiles with files, and checks that it loads. Each file has a
// Caddyfile, a line of dashes, and the JSON that it adapts to.
func CheckCaddyfiles(t *testing.T, pattern string) {
	t.Helper()
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PG_RATELIMIT_TEST", "postgres://user@localhost/db")
	golden.ReplayAll(t, pattern, func(t *testing.T, text string) string {
		source, _, _ := strings.Cut(text, "----------\n")
		adapted, err := Adapt(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := Validate(adapted); err != nil {
			t.Errorf("validating: error %v, want nil", err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, adapted, "", "\t"); err != nil {
			t.Fatal(err)
		}
		return source + "----------\n" + pretty.String() + "\n"
	})
}

// place matches the position in an error.
var place = regexp.MustCompile(`, at Caddyfile:\d+`)

// CheckRejectedCaddyfiles checks the errors about invalid Caddyfiles: each has the setting, its value, the
// valid values, and the line. A file has each form of a setting and of an error once, as a Caddyfile and a
// part of the error, because package settings tests the valid values of each setting.
func CheckRejectedCaddyfiles(t *testing.T, file string) {
	t.Helper()
	t.Setenv("DATABASE_URL", "")
	cases, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.SplitSeq(strings.TrimSpace(string(cases)), "\n\n") {
		config, want, _ := strings.Cut(one, "\n! ")
		adapted, err := Adapt(config + "\n")
		if err == nil {
			err = Validate(adapted)
		} else if !place.MatchString(err.Error()) {
			t.Errorf("%s\nthe error is %v, want one with a line", config, err)
		}
		CheckRejected(t, config, err, want)
	}
}

// CheckRejected checks that err is about a config, contains want, and has no password.
func CheckRejected(t *testing.T, config string, err error, want string) {
	t.Helper()
	got := fmt.Sprint(err)
	if !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
		t.Errorf("%s\nthe error is\n%s\nwant\n%s", config, got, want)
	}
}
