package traefikplugin

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
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

// invalidSettings has changes that make a valid configuration invalid, by the starts of the errors.
var invalidSettings = map[string]func(*Config){
	`cost: "{nobody}"`:  func(c *Config) { c.Other["cost"] = "{nobody}" },
	`key: "{client_ip"`: func(c *Config) { c.Other["key"] = "{client_ip" },
	`onError: "ignore"`: func(c *Config) { c.Other["onError"] = "ignore" },
	`limit: missing: must be set, because another setting of a limit is set here`: func(c *Config) {
		c.Other["limit"], c.Zones = "", []Zone{{Other: Settings{"prefix": "z", "limit": "5 1m"}}}
	},
	`dsn: missing`:             func(c *Config) { c.Other["dsn"] = "" },
	`dsn: `:                    func(c *Config) { c.Other["dsn"] = "mysql://localhost" },
	`ipStrategy.depth: "-1"`:   func(c *Config) { c.IPStrategy = &IPStrategy{Depth: -1} },
	`zones[0].limit: missing`:  func(c *Config) { c.Zones = []Zone{{Other: Settings{"prefix": "z"}}} },
	`zones[0].prefix: missing`: func(c *Config) { c.Zones = []Zone{{Other: Settings{"limit": "5 1m"}}} },
	`policy.apiKey: "X-Api-Key": must be text with a placeholder, such as ` +
		`{header.X-Api-Key}`: func(c *Config) {
		c.Other["policy"] = Settings{"apiKey": "X-Api-Key"}
	},
	`policy.withoutKey: "allow": must be refuse or anonymous`: func(c *Config) {
		c.Other["policy"] = Settings{"apiKey": "{header.X}", "withoutKey": "allow"}
	},
	`policy.withoutKey: "refuse": must be left out: requests have no key`: func(c *Config) {
		c.Other["policy"] = Settings{"user": "{header.X}", "withoutKey": "refuse"}
	},
	`policy.forwardHeaders: "maybe"`: func(c *Config) {
		c.Other["policy"] = Settings{"forwardHeaders": "maybe"}
	},
	`zones[0].audit: "sample 2": must be off, denied`: func(c *Config) {
		c.Zones = []Zone{{Other: Settings{"prefix": "a", "limit": "5 1m", "audit": "sample 2"}}}
	},
	`history.retention.usage: "7 years": must be a duration from 1d to 100y`: func(c *Config) {
		c.Other["history"] = Settings{"retention": Settings{"usage": "7 years"}}
	},
	`policy: "many": must be on or off`:    func(c *Config) { c.Other["policy"] = "many" },
	`history: "[map`:                       func(c *Config) { c.Other["history"] = []any{Settings{}} },
	`setting: "retention": must be one of`: func(c *Config) { c.Other["retention"] = Settings{} },
	`setting: "Policy": must be policy`:    func(c *Config) { c.Other["Policy"] = Settings{} },
	`setting: "zones[0].without_key": must be zones[0].withoutKey`: func(c *Config) {
		c.Zones = []Zone{{Other: Settings{"prefix": "z", "limit": "5 1m", "without_key": "skip"}}}
	},
	`setting: "policy.apikey": must be policy.apiKey`: func(c *Config) {
		c.Other["policy"] = Settings{"apikey": "{header.X}"}
	},
	`history.retention: "x": must be on or off`: func(c *Config) {
		c.Other["history"] = Settings{"retention": "x"}
	},
	`setting: "ip_strategy": must be ipStrategy`: func(c *Config) { c.Other["ip_strategy"] = Settings{} },
	`zones[0].hashKey: "x"`: func(c *Config) {
		c.Zones = []Zone{{Other: Settings{"prefix": "a", "limit": "5 1m",
			"hashKey": "x"}}}
	},
	`match: missing: must be one or more of paths, methods, hosts and headers`: func(c *Config) {
		c.Match = &Match{}
	},
	`zones[0].match.paths: "api": must be a path such as /login`: func(c *Config) {
		c.Zones = []Zone{{Other: Settings{"prefix": "z", "limit": "5 1m"},
			Match: &Match{Paths: []string{"/x", "api"}}}}
	},
	`match.hosts: "a:80": must be a host`: func(c *Config) {
		c.Match = &Match{Hosts: []string{"a:80"}}
	},
	`match.methods: "G T": must be methods such as GET`: func(c *Config) {
		c.Match = &Match{Methods: []string{"G T"}}
	},
	`match.headers: "host: a": must be another header: match.hosts`: func(c *Config) {
		c.Match = &Match{Headers: []string{"host: a"}}
	},
	`match.headers: "X-Plan:": must be the name of a header`: func(c *Config) {
		c.Match = &Match{Headers: []string{"X-Plan:"}}
	},
}

// An error names the setting as Traefik's configuration does, in each section. Tests of package serve and of
// the Caddy module cover further settings.
func TestInvalidSettingsAreNamed(t *testing.T) {
	for want, change := range invalidSettings {
		t.Setenv("DATABASE_URL", "")
		c := validConfig()
		change(c)
		_, err := New(t.Context(), nil, c, "test")
		if got := fmt.Sprint(err); !strings.HasPrefix(got, "pg_ratelimit: "+want) {
			t.Errorf("New() = error %s, want %s …", got, want)
		}
	}
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
