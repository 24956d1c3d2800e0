package traefikplugin

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// valid is a valid configuration.
func valid() *Config {
	c := CreateConfig()
	c.DSN, c.Prefix, c.Limit = "memory", "api", "100 1m"
	return c
}

// TestEachFieldIsChecked has a wrong value of each field. Tests of package edge have all values.
func TestEachFieldIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`prefix: missing`:    func(c *Config) { c.Prefix = "" },
		`limit: missing`:     func(c *Config) { c.Limit = "" },
		`algorithm: "leaky"`: func(c *Config) { c.Algorithm = "leaky" },
		`burst: "5"`:         func(c *Config) { c.Burst = "5" },
		`cost: "0"`:          func(c *Config) { c.Cost = "0" },
		`minCost: "-1"`:      func(c *Config) { c.Cost, c.MinCost = "{header.X}", "-1" },
		`maxKeys: "0"`:       func(c *Config) { c.MaxKeys = "0" },
		`maxKeys: "1000": must be left out with a lease`: func(c *Config) { c.MaxKeys, c.Lease = "1000", "5%" },
		`cost: "{nobody}"`:           func(c *Config) { c.Cost = "{nobody}" },
		`key: "{client_ip"`:          func(c *Config) { c.Key = "{client_ip" },
		`hashKey: "perhaps"`:         func(c *Config) { c.HashKey = "perhaps" },
		`timeout: "2m"`:              func(c *Config) { c.Timeout = "2m" },
		`onError: "ignore"`:          func(c *Config) { c.OnError = "ignore" },
		`cleanupProbability: "1.5"`:  func(c *Config) { c.CleanupProbability = "1.5" },
		`ipv4Prefix: "33"`:           func(c *Config) { c.IPv4Prefix = "33" },
		`maxConns: "0"`:              func(c *Config) { c.MaxConns = "0" },
		`durable: "perhaps"`:         func(c *Config) { c.Durable = "perhaps" },
		`synchronousCommit: "maybe"`: func(c *Config) { c.SynchronousCommit = "maybe" },
		`autoMigrate: "2"`:           func(c *Config) { c.AutoMigrate = "2" },
		`inMemoryBlock: "no"`:        func(c *Config) { c.InMemoryBlock = "no" },
		`limit: missing: must be given here, or drop the prefix`: func(c *Config) { c.Limit, c.Zones = "", []Zone{{Prefix: "z", Limit: "5 1m"}} },
		`limit: missing: must be given here, or drop the key`: func(c *Config) {
			c.Prefix, c.Limit, c.Key, c.Zones = "", "", "{path}", []Zone{{Prefix: "z", Limit: "5 1m"}}
		},
		`limit: "100 1mo": must be a window from 1ms to 876600h (100 years) in whole microseconds, with the units ms, s, m, h, d and w`: func(c *Config) { c.Limit = "100 1mo" },
		`headers: "theirs"`:        func(c *Config) { c.Headers = "theirs" },
		`dsn: missing`:             func(c *Config) { c.DSN = "" },
		`dsn: `:                    func(c *Config) { c.DSN = "mysql://localhost" },
		`ipStrategy.depth: "-1"`:   func(c *Config) { c.IPStrategy = &IPStrategy{Depth: -1} },
		`zones[0].limit: missing`:  func(c *Config) { c.Zones = []Zone{{Prefix: "z"}} },
		`zones[0].prefix: missing`: func(c *Config) { c.Zones = []Zone{{Limit: "5 1m"}} },
		`zones[1].key: "}"`: func(c *Config) {
			c.Zones = []Zone{{Prefix: "a", Limit: "5 1m"}, {Prefix: "b", Limit: "5 1m", Key: "}"}}
		},
		`policy.apiKey: "X-Api-Key": must be text with a placeholder, such as {header.X-Api-Key}`: func(c *Config) { c.Policy = []Policy{{APIKey: "X-Api-Key"}} },
		`policy.apiKey: "{nope}"`: func(c *Config) { c.Policy = []Policy{{APIKey: "{nope}"}} },
		`policy.user: "alice"`:    func(c *Config) { c.Policy = []Policy{{User: "alice"}} },
		`policy.tier: "{"`:        func(c *Config) { c.Policy = []Policy{{Tier: "{"}} },
		`policy.unknownKey: "allow": must be reject or anonymous`:                                         func(c *Config) { c.Policy = []Policy{{UnknownKey: "allow"}} },
		`policy.refresh: "2m": must be a duration from 50ms to 1m`:                                        func(c *Config) { c.Policy = []Policy{{Refresh: "2m"}} },
		`policy.maxIdentities: "0"`:                                                                       func(c *Config) { c.Policy = []Policy{{MaxIdentities: "0"}} },
		`policy.forwardHeaders: "maybe"`:                                                                  func(c *Config) { c.Policy = []Policy{{ForwardHeaders: "maybe"}} },
		`dsn: "memory": must be a Postgres URL or key=value pairs: the rules of a policy are in Postgres`: func(c *Config) { c.Policy = []Policy{{}} },
		`prefix: "rule/x": must be a name that does not begin with rule/`:                                 func(c *Config) { c.Policy, c.Prefix = []Policy{{}}, "rule/x" },
		`ban: "1h after 10": must be a ban such as`:                                                       func(c *Config) { c.Policy, c.Ban = []Policy{{}}, "1h after 10" },
		`zones[0].ban: "1h after 10 refusals in 1m": must be left out, or used with a policy`: func(c *Config) {
			c.Zones = []Zone{{Prefix: "a", Limit: "5 1m", Ban: "1h after 10 refusals in 1m"}}
		},
		`audit: "most": must be off, denied, all, or sample`: func(c *Config) { c.Audit = "most" },
		`zones[0].audit: "sample 2": must be off, denied`: func(c *Config) {
			c.Zones = []Zone{{Prefix: "a", Limit: "5 1m", Audit: "sample 2"}}
		},
		`history.node: "a\nb": must be a name of 1 to 100 bytes`:    func(c *Config) { c.History = []History{{Node: "a\nb"}} },
		`history.region: "\x00": must be a name`:                    func(c *Config) { c.History = []History{{Region: "\x00"}} },
		`history.auditAddress: "half": must be full, prefix or off`: func(c *Config) { c.History = []History{{AuditAddress: "half"}} },
		`history.retention.metricsDay: "7 years": must be a duration from 1d to 100y`: func(c *Config) {
			c.History = []History{{Retention: []Retention{{MetricsDay: "7 years"}}}}
		},
		`dsn: "memory": must be a Postgres URL or key=value pairs, or used with audit off: the history is in Postgres`: func(c *Config) { c.Audit = "denied" },
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
		t.Errorf("%d pools are open after errors only", len(shared.pools))
	}
}

// Kubernetes gives Traefik numbers as floating-point numbers.
func TestANumberInCaddysSpellingIsWholeText(t *testing.T) {
	c := valid()
	c.Other = map[string]any{"max_keys": float64(1000000), "max_conns": 4, "cleanup_probability": 0.25}
	if err := c.adoptAll(); err != nil || c.MaxKeys != "1000000" || c.MaxConns != "4" || c.CleanupProbability != "0.25" {
		t.Errorf("%v: maxKeys %q, maxConns %q, cleanupProbability %q", err, c.MaxKeys, c.MaxConns, c.CleanupProbability)
	}
}

func TestNoErrorHasThePassword(t *testing.T) {
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
	c.Zones = []Zone{{Prefix: "a", Limit: "5 1m", Key: "x"}, {Prefix: "a", Limit: "5 1m", Key: "y"}, {Prefix: "a", Limit: "5 1m", Durable: "on", HashKey: "true"}}
	made, err := c.compile()
	if err != nil {
		t.Fatal(err)
	}
	if zones := made.site.Zones; len(zones) != 3 || !zones[2].Secret || zones[2].Cost != 1 || zones[1].Key.Of(nil) != "y" {
		t.Errorf("%+v", zones)
	}
}

// Switches and numbers take what those of the Caddy module take.
func TestSettingsAreAsInCaddy(t *testing.T) {
	c := valid()
	c.DSN = "postgres://localhost/x"
	c.Durable, c.SynchronousCommit, c.HashKey = "on", "1", "off"
	c.AutoMigrate, c.InMemoryBlock, c.CleanupProbability, c.MaxConns, c.MaxBlockedKeys = "off", "false", "0", "3", "7"
	made, err := c.compile()
	if err != nil || !made.site.Zones[0].Limit.Durable || !made.site.Zones[0].Limit.SynchronousCommit || made.site.Zones[0].Secret {
		t.Errorf("%+v, %v", made, err)
	}
	settings, err := c.store()
	if want := (edge.StoreSettings{DSN: c.DSN, MaxConns: 3}); err != nil || settings != want {
		t.Errorf("%+v, %v; want %+v", settings, err, want)
	}
}

// A warning has the name that the setting has in Traefik.
func TestWarningsNameTheSetting(t *testing.T) {
	c := valid()
	c.SynchronousCommit = "true"
	output := logged(t, func() { open(t, t.Context(), newRegistry(time.Minute), nil, c) })
	if !strings.Contains(output, "middleware test, prefix api: synchronousCommit does nothing for a limit that is not durable") {
		t.Errorf("logs %q", output)
	}
}

func TestDefaults(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://localhost/x")
	c := CreateConfig()
	var read edge.Settings
	if err := edge.Read(edge.HandlerTable, reflect.ValueOf(c), &read); err != nil || read.Timeout != 250*time.Millisecond || read.OnError != edge.Allow {
		t.Error(read.Timeout, read.OnError, err)
	}
	settings, err := c.store()
	if err != nil || settings != (edge.StoreSettings{DSN: "postgres://localhost/x", MaxConns: 8, AutoMigrate: true, CleanupProbability: 0.1, InMemoryBlock: true}) {
		t.Error(settings, err)
	}
	t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "perhaps")
	if _, err = c.store(); err == nil || !strings.HasPrefix(err.Error(), "environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE: ") {
		t.Error(err)
	}
}
