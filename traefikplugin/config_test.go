package traefikplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// validConfig returns a valid configuration of one limit, with further settings.
func validConfig(further ...Settings) *Config {
	c := CreateConfig()
	maps.Copy(c.Other, Settings{"dsn": "memory", "prefix": "api", "limit": "100 1m"})
	for _, settings := range further {
		maps.Copy(c.Other, settings)
	}
	return c
}

// configOf returns validConfig with the settings of a JSON text, as Traefik decodes them.
func configOf(t *testing.T, text string) *Config {
	t.Helper()
	c, all := validConfig(), struct {
		Other Settings
		Zones []Settings
	}{}
	if err := errors.Join(json.Unmarshal([]byte(text), c), json.Unmarshal([]byte(text), &all.Other),
		json.Unmarshal([]byte(text), &all)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for i := range c.Zones {
		c.Zones[i].Other = all.Zones[i]
		delete(all.Zones[i], "match")
	}
	for _, name := range []string{"match", "zones", "ipStrategy"} {
		delete(all.Other, name)
	}
	maps.Copy(c.Other, all.Other)
	return c
}

// An error names the setting as Traefik's configuration does, in each section. Tests of package serve and of
// the Caddy module cover further settings. A line of the transcript is a configuration: what it has beside a
// valid one. The other lines of the folder are addresses of clients, see clientOf.
func TestInvalidSettingsAreNamed(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	golden.ReplayLines(t, "testdata/*.txt", func(t *testing.T, kind, text string) string {
		if kind == "client" {
			return clientOf(t, text)
		}
		_, err := New(t.Context(), nil, configOf(t, text), "test")
		text, _, _ = strings.Cut(fmt.Sprint(err), " algorithm, ") // the list of all settings
		return text
	})
	if n := len(shared.host.Shared()); n != 0 {
		t.Errorf("%d open resources after errors, want 0", n)
	}
}

// Kubernetes passes all numbers as floating-point numbers, and other types than text: the plugin accepts
// these.
func TestNumbersBecomeText(t *testing.T) {
	c := validConfig()
	c.Other = map[string]any{"burst": float64(1000000), "maxConns": 4, "cleanupProbability": 0.25}
	r := &reader{}
	read := r.values("", c.Other, "", settings.LimitTable, settings.ConnectionTable)
	want := settings.Values{"burst": "1000000", "max_conns": "4", "cleanup_probability": "0.25"}
	if r.err != nil || !reflect.DeepEqual(read, want) {
		t.Errorf("values() = %v, error %v; want %v", read, r.err, want)
	}
}

// A warning in the log names the middleware, the prefix, and the setting as in Traefik's configuration.
func TestWarningsNameTheSetting(t *testing.T) {
	c := validConfig(Settings{"synchronousCommit": "true"})
	output := captureLog(t, func() { newMiddleware(t, t.Context(), newProcess(time.Minute), nil, c) })
	want := "middleware test, prefix api: synchronousCommit does nothing for a limit that is not durable"
	if !strings.Contains(output, want) {
		t.Errorf("log %q, want %q", output, want)
	}
}
