package traefikplugin

import (
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
)

// valid is a configuration without fault.
func valid() *Config {
	c := CreateConfig()
	c.DSN, c.Prefix, c.Limit = "memory", "api", "100 1m"
	return c
}

func TestEachFieldIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`prefix: missing`:            func(c *Config) { c.Prefix = "" },
		`limit: missing`:             func(c *Config) { c.Limit = "" },
		`limit: "0 1m"`:              func(c *Config) { c.Limit = "0 1m" },
		`limit: "5 0s"`:              func(c *Config) { c.Limit = "5 0s" },
		`algorithm: "leaky"`:         func(c *Config) { c.Algorithm = "leaky" },
		`burst: "0"`:                 func(c *Config) { c.Algorithm, c.Burst = "token_bucket", "0" },
		`burst: "2.5"`:               func(c *Config) { c.Algorithm, c.Burst = "token_bucket", "2.5" },
		`burst: "5"`:                 func(c *Config) { c.Burst = "5" },
		`cost: "0"`:                  func(c *Config) { c.Cost = "0" },
		`cost: "-1"`:                 func(c *Config) { c.Cost = "-1" },
		`cost: "{nobody}"`:           func(c *Config) { c.Cost = "{nobody}" },
		`key: "{client_ip"`:          func(c *Config) { c.Key = "{client_ip" },
		`hashKey: "perhaps"`:         func(c *Config) { c.HashKey = "perhaps" },
		`timeout: "0s"`:              func(c *Config) { c.Timeout = "0s" },
		`timeout: "250"`:             func(c *Config) { c.Timeout = "250" },
		`timeout: "2m0s"`:            func(c *Config) { c.Timeout = "2m" },
		`timeout: "-1s"`:             func(c *Config) { c.Timeout = "-1s" },
		`onError: "ignore"`:          func(c *Config) { c.OnError = "ignore" },
		`maxConns: "-1"`:             func(c *Config) { c.MaxConns = -1 },
		`maxConns: "1001"`:           func(c *Config) { c.MaxConns = 1001 },
		`cleanupProbability: "1.5"`:  func(c *Config) { c.CleanupProbability = 1.5 },
		`maxBlockedKeys: "-1"`:       func(c *Config) { c.MaxBlockedKeys = -1 },
		`maxBlockedKeys: "10000001"`: func(c *Config) { c.MaxBlockedKeys = 10000001 },
		`dsn: missing`:               func(c *Config) { c.DSN = "" },
		`dsn: `:                      func(c *Config) { c.DSN = "mysql://localhost" },
		`ipStrategy.depth: "-1"`:     func(c *Config) { c.IPStrategy = &IPStrategy{Depth: -1} },
		`zones[0].limit: missing`:    func(c *Config) { c.Zones = []Zone{{Prefix: "z"}} },
		`zones[0].prefix: missing`:   func(c *Config) { c.Zones = []Zone{{Limit: "5 1m"}} },
		`zones[1].key: "}"`: func(c *Config) {
			c.Zones = []Zone{{Prefix: "a", Limit: "5 1m"}, {Prefix: "b", Limit: "5 1m", Key: "}"}}
		},
		`zones[0].cost: "x"`:                           func(c *Config) { c.Zones = []Zone{{Prefix: "a", Limit: "5 1m", Cost: "x"}} },
		`zones[0].hashKey: "x"`:                        func(c *Config) { c.Zones = []Zone{{Prefix: "a", Limit: "5 1m", HashKey: "x"}} },
		`zones[0].prefix: "api": must be another name`: func(c *Config) { c.Zones = []Zone{{Prefix: "api", Limit: "5 1m", Key: "all"}} },
	} {
		t.Setenv("DATABASE_URL", "")
		c := valid()
		change(c)
		_, err := New(t.Context(), nil, c, "test")
		if err == nil || !strings.HasPrefix(err.Error(), "pg_ratelimit: "+want) {
			t.Errorf("want %s …, got %v", want, err)
		}
	}
	if len(shared.pools) != 0 {
		t.Errorf("%d pools are open after nothing but errors", len(shared.pools))
	}
}

func TestPasswordIsInNoError(t *testing.T) {
	for _, dsn := range []string{"mysql://u:hunter2@localhost", "postgres://u:hunter2@localhost:99999/x", "postgres://u:hunter2@localhost/x?sslmode=perhaps", "host=localhost password=hunter2 sslmode=perhaps", "postgres://u:hunt@hunter2@localhost/x"} {
		c := valid()
		c.DSN = dsn
		if _, err := New(t.Context(), nil, c, "test"); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
}

func TestZonesAloneAreEnough(t *testing.T) {
	c := CreateConfig()
	c.DSN = "memory"
	c.Zones = []Zone{{Prefix: "a", Limit: "5 1m", Key: "x"}, {Prefix: "a", Limit: "5 1m", Key: "y"}, {Prefix: "a", Limit: "5 1m", Durable: true, HashKey: "true"}}
	rules, err := c.rules()
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) != 3 || !rules[2].secret || rules[2].cost != 1 || expand(rules[1].key, nil, nil) != "y" {
		t.Errorf("%+v", rules)
	}
}

func TestDefaults(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://localhost/x")
	c := CreateConfig()
	timeout, onError, err := c.gate()
	if err != nil || timeout != 250*time.Millisecond || onError != edge.Allow {
		t.Error(timeout, onError, err)
	}
	key, err := c.database()
	if err != nil || key != (poolKey{dsn: "postgres://localhost/x", migrate: true, cleanup: 0.1}) {
		t.Error(key, err)
	}
	c.InMemoryBlock = false
	if key, err = c.database(); err != nil || key.blocked != -1 {
		t.Error(key, err)
	}
	c.InMemoryBlock = true
	c.MaxBlockedKeys = 7
	if key, err = c.database(); err != nil || key.blocked != 7 {
		t.Error(key, err)
	}
	t.Setenv(migrationSwitch, "true")
	if key, err = c.database(); err != nil || key.migrate {
		t.Error(key, err)
	}
	t.Setenv(migrationSwitch, "perhaps")
	if _, err = c.database(); err == nil || !strings.Contains(err.Error(), migrationSwitch) {
		t.Error(err)
	}
}
