package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/traefik/paerser/file"
	"github.com/traefik/paerser/parser"
	"gopkg.in/yaml.v3"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// pluginConfigurations is as much of Traefik's dynamic configuration as a
// plugin's middleware is in; Docker labels are parsed into it.
type pluginConfigurations struct {
	HTTP *struct {
		Middlewares map[string]*struct {
			Plugin map[string]map[string]any
		}
	}
}

const fullYAML = `
dsn: memory
maxConns: 6
autoMigrate: off
cleanupProbability: 0.5
prefix: api
key: "{header.X-Tenant}"
algorithm: token_bucket
limit: 100 1h
burst: 20
cost: 2
durable: on
synchronousCommit: true
hashKey: true
timeout: 100ms
onError: deny
ipStrategy:
  depth: 1
  excludedIPs: ["10.0.0.0/8", "192.0.2.1"]
  ipv6Subnet: 64
zones:
  - prefix: per-client
    key: "{client_ip}"
    limit: 30 1h
    algorithm: fixed_window
    durable: false
  - prefix: all
    key: all
    limit: 1000/1d
    cost: "{header.X-Cost}"
`

// labelsOf adds a value as Docker labels.
func labelsOf(labels map[string]string, name string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, below := range value {
			labelsOf(labels, name+"."+key, below)
		}
	case []any:
		var texts []string
		for i, below := range value {
			if text, ok := below.(string); ok {
				texts = append(texts, text)
			} else {
				labelsOf(labels, fmt.Sprintf("%s[%d]", name, i), below)
			}
		}
		if texts != nil {
			labels[name] = strings.Join(texts, ",")
		}
	default:
		labels[name] = fmt.Sprint(value)
	}
}

// TestConfigurationComesThroughEveryProvider gives the plugin one configuration
// in the types that Traefik's providers give it.
func TestConfigurationComesThroughEveryProvider(t *testing.T) {
	t.Parallel()
	var byFile, byKubernetes map[string]any
	if err := yaml.Unmarshal([]byte(fullYAML), &byFile); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(byFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(asJSON, &byKubernetes); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	labelsOf(labels, "traefik.http.middlewares.limit.plugin.pg-ratelimit", byFile)
	var byLabels pluginConfigurations
	if err := parser.Decode(labels, &byLabels, "traefik", "traefik.http"); err != nil {
		t.Fatal(err)
	}
	p := loadPlugin(t)
	for name, config := range map[string]map[string]any{
		"file": byFile, "Kubernetes": byKubernetes,
		"Docker": byLabels.HTTP.Middlewares["limit"].Plugin["pg-ratelimit"],
	} {
		for zone := range 3 { // so that none shares counters with another provider
			makePrefixUnique(config, zone, name)
		}
		h := p.mustHandler(t, ok, config)
		// Costs: 2 of 20 tokens, 1 of 30, and 100 of 1000.
		for i, want := range []string{"18", "16", "14"} {
			w := ask(h, "X-Tenant", "acme", "X-Cost", "100", "X-Forwarded-For", "2001:db8::"+want)
			if w.Code != http.StatusOK || w.Header().Get("X-RateLimit-Limit") != "20" ||
				w.Header().Get("X-RateLimit-Remaining") != want {
				t.Errorf("%s, request %d: %d %v", name, i, w.Code, w.Header())
			}
		}
		// 700 are left of 1000, for all clients together.
		if w := ask(h, "X-Tenant", "other", "X-Cost", "701", "X-Forwarded-For",
			"192.0.2.7"); w.Code != http.StatusTooManyRequests ||
			w.Header().Get("X-RateLimit-Limit") != "1000" {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		// 27 left of 30, for all of 2001:db8::/64.
		for i := range 28 {
			w := ask(h, "X-Tenant", strconv.Itoa(i), "X-Cost", "0", "X-Forwarded-For",
				"2001:db8::"+strconv.Itoa(i))
			if passes := w.Code == http.StatusOK; passes != (i < 27) {
				t.Errorf("%s, request %d of the network: %d %v", name, i, w.Code, w.Header())
			}
		}
	}
}

// awaitHistory waits until the metrics have so many requests. They are the last that is written.
func awaitHistory(t *testing.T, dsn string, n int) {
	t.Helper()
	await(t, "the history", func() bool {
		return cluster.Query[int64](t, dsn,
			"SELECT count(*) FROM pg_class WHERE relname = 'rate_limit_metrics_day'") == 1 &&
			cluster.Query[int64](t, dsn, "SELECT coalesce(sum(requests), 0)::bigint FROM "+
				"rate_limit_metrics WHERE granularity = 'minute'") >= int64(n)
	})
}

// TestEmptyMapsAreTheDefaults gives the plugin empty maps as Traefik's providers give them: those of
// files and of labels give "".
func TestEmptyMapsAreTheDefaults(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, "SELECT rate_limit_rule('all', count_by => '{all}', per_hour => 5)")
	text := "HTTP:\n  Middlewares:\n    limit:\n      Plugin:\n        pg-ratelimit:\n          dsn: " + dsn +
		"\n          timeout: 30s\n          policy: {}\n          history: {}\n"
	var byFile, byLabels pluginConfigurations
	if err := file.DecodeContent(text, ".yaml", &byFile); err != nil {
		t.Fatal(err)
	}
	const prefix = "traefik.http.middlewares.limit.plugin.pg-ratelimit."
	if err := parser.Decode(map[string]string{prefix + "dsn": dsn, prefix + "timeout": "30s", prefix +
		"policy": "", prefix + "history.retention": ""}, &byLabels, "traefik", "traefik.http"); err != nil {
		t.Fatal(err)
	}
	p := loadPlugin(t)
	configs := []map[string]any{
		byFile.HTTP.Middlewares["limit"].Plugin["pg-ratelimit"],
		byLabels.HTTP.Middlewares["limit"].Plugin["pg-ratelimit"],
		{"dsn": dsn, "timeout": "30s", "policy": object{}, "history": object{}}, // by Kubernetes
	}
	for i, config := range configs {
		h := p.mustHandler(t, ok, config)
		want := strconv.Itoa(4 - i)
		if w := ask(h); w.Code != http.StatusOK || w.Header().Get("X-RateLimit-Limit") != "5" ||
			w.Header().Get("X-RateLimit-Remaining") != want {
			t.Errorf("%v: %d %v, want %s left", config, w.Code, w.Header(), want)
		}
	}
	awaitHistory(t, dsn, len(configs))
}

// makePrefixUnique makes a prefix of the configuration unique.
func makePrefixUnique(config map[string]any, zone int, name string) {
	if zone == 0 {
		config["prefix"] = config["prefix"].(string) + "-" + name
		return
	}
	z := config["zones"].([]any)[zone-1].(map[string]any)
	z["prefix"] = z["prefix"].(string) + "-" + name
}

// TestManifest holds .traefik.yml to what Traefik and the catalogue want of it,
// and its test data to work where no database is.
func TestManifest(t *testing.T) {
	t.Parallel()
	m := readManifest(t)
	if m.DisplayName == "" || m.Summary == "" || m.Type != "middleware" ||
		(m.Runtime != "" && m.Runtime != "yaegi") || !strings.HasPrefix(m.Import, modulePath) {
		t.Errorf("%+v", m)
	}
	icon, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(m.IconPath)))
	if err != nil || !strings.HasPrefix(string(icon), "\x89PNG") {
		t.Errorf("icon %q: %v", m.IconPath, err)
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, refused := range []string{"github.com/traefik/yaegi", "github.com/traefik/traefik",
		"github.com/traefik/mesh", "github.com/containous/"} {
		if strings.Contains(string(mod), refused) {
			t.Errorf("go.mod requires %s, for which the catalogue refuses the plugin", refused)
		}
	}
	if _, err := os.Stat("../vendor"); err == nil {
		t.Error("there is a vendor folder")
	}
	p, example := loadPlugin(t, "DATABASE_URL="), m.TestData["dsn"].(string)
	if !strings.HasPrefix(example, "postgres://") {
		t.Errorf("the example counts in %s", example)
	}
	// where nothing is; New needs no database
	m.TestData["dsn"] = strings.Replace(example, "db.internal", "127.0.0.1:1", 1)
	if w := ask(p.mustHandler(t, ok, m.TestData)); w.Code != http.StatusOK {
		t.Errorf("without a database: %d %v", w.Code, w.Header())
	}
	m.TestData["dsn"], m.TestData["timeout"] = policyDatabase(t, ""), "30s"
	if w := ask(p.mustHandler(t, ok, m.TestData)); w.Code != http.StatusOK ||
		w.Header().Get("X-RateLimit-Limit") != "100" || w.Header().Get("X-RateLimit-Remaining") != "99" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
