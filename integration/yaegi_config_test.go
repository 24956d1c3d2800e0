package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/traefik/paerser/file"
	"github.com/traefik/paerser/parser"
	"gopkg.in/yaml.v3"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// pluginConfigurations is the part of Traefik's dynamic configuration that has the middlewares of plugins.
// Files and Docker labels are parsed into it.
type pluginConfigurations struct {
	HTTP *struct {
		Middlewares map[string]*struct {
			Plugin map[string]map[string]any
		}
	}
}

func (c *pluginConfigurations) plugin() map[string]any {
	return c.HTTP.Middlewares["limit"].Plugin["pg-ratelimit"]
}

// providedYAML has settings of all types, and empty maps, for which files and labels provide "".
const providedYAML = `
dsn: DSN
maxConns: 6
cleanupProbability: 0.5
prefix: api
key: "{header.X-Tenant}"
algorithm: token_bucket
limit: 100 1h
burst: 20
cost: 2
durable: on
hashKey: true
timeout: 30s
onError: deny
policy: {}
history: {}
ipStrategy:
  depth: 1
  excludedIPs: ["10.0.0.0/8", "192.0.2.1"]
  ipv6Subnet: 64
zones:
  - prefix: per-client
    key: "{client_ip}"
    limit: 12 1h
    algorithm: fixed_window
    durable: false
`

// emptyMaps has other forms of the empty maps. Traefik drops a name without a value from a file.
var emptyMaps = map[string][]string{
	"Kubernetes": {"policy:", "history:"},
	"Docker":     {"policy: true", "history: '{}'"},
}

func parseYAML(t *testing.T, text string) (parsed map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed
}

// labelsOf adds a value as Docker labels.
func labelsOf(labels map[string]string, name string, value any) {
	switch value := value.(type) {
	case map[string]any:
		if len(value) == 0 {
			labels[name] = ""
		}
		for key, item := range value {
			labelsOf(labels, name+"."+key, item)
		}
	case []any:
		var values []string
		for i, item := range value {
			if text, ok := item.(string); ok {
				values = append(values, text)
			} else {
				labelsOf(labels, fmt.Sprintf("%s[%d]", name, i), item)
			}
		}
		if values != nil {
			labels[name] = strings.Join(values, ",")
		}
	default:
		labels[name] = fmt.Sprint(value)
	}
}

// The plugin applies a configuration with settings of all types, whichever of Traefik's providers has decoded
// it: the limits have their amounts, and the policy and the history are on.
func TestConfigurationComesThroughEveryProvider(t *testing.T) {
	t.Parallel()
	const head = "HTTP:\n  Middlewares:\n    limit:\n      Plugin:\n        pg-ratelimit:"
	const indent = "\n          "
	p := loadPlugin(t)
	for name, decode := range map[string]func(text string) (map[string]any, error){
		"file": func(text string) (map[string]any, error) {
			var c pluginConfigurations
			err := file.DecodeContent(head+strings.ReplaceAll(text, "\n", indent), ".yaml", &c)
			return c.plugin(), err
		},
		"Kubernetes": func(text string) (config map[string]any, err error) {
			asJSON, err := json.Marshal(parseYAML(t, text))
			if err == nil {
				err = json.Unmarshal(asJSON, &config)
			}
			return config, err
		},
		"Docker": func(text string) (map[string]any, error) {
			labels := map[string]string{}
			labelsOf(labels, "traefik.http.middlewares.limit.plugin.pg-ratelimit", parseYAML(t, text))
			var c pluginConfigurations
			err := parser.Decode(labels, &c, "traefik", "traefik.http")
			return c.plugin(), err
		},
	} {
		dsn := policytest.Open(t, "SELECT rate_limit_rule('all', count_by => '{all}', per_hour => 1000)")
		text := strings.Replace(providedYAML, "DSN", dsn, 1)
		if other := emptyMaps[name]; other != nil {
			text = strings.NewReplacer("policy: {}", other[0], "history: {}", other[1]).Replace(text)
		}
		config, err := decode(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		h := p.mustHandler(t, emptyOK, config)
		// Each request costs 2 of 20 for its tenant, and 1 of 12 for all of 2001:db8::/64.
		for i := range 14 {
			tenant, want := "acme", cmp.Or(map[int]string{10: "429 20", 13: "429 12"}[i], "200 ")
			if i > 10 {
				tenant = fmt.Sprint("tenant", i)
			}
			w := ask(h, "X-Tenant", tenant, "X-Forwarded-For", fmt.Sprint("2001:db8::", i))
			got := fmt.Sprint(w.Code, " ", w.Header().Get("X-RateLimit-Limit"))
			if !strings.HasPrefix(got, want) {
				t.Errorf("%s, request %d: %s, want %s", name, i, got, want)
			}
		}
		await(t, "the history", func() bool {
			return cluster.Query[bool](t, dsn,
				"SELECT to_regclass('rate_limit_metrics_day') IS NOT NULL") &&
				cluster.Query[int64](t, dsn, "SELECT coalesce(sum(requests), 0)::bigint FROM "+
					"rate_limit_metrics WHERE granularity = 'minute'") >= 14
		})
	}
}

// .traefik.yml has what Traefik and the catalog require. With its test data, the plugin works without a
// database.
func TestManifestSatisfiesCatalog(t *testing.T) {
	t.Parallel()
	m := readManifest(t)
	if m.DisplayName == "" || m.Summary == "" {
		t.Errorf("the manifest is %+v, want a name and a summary", m)
	}
	got := fmt.Sprint(cmp.Or(m.Runtime, "yaegi"), " ", m.Type, " ", m.Import)
	if want := "yaegi middleware " + modulePath; !strings.HasPrefix(got, want) {
		t.Errorf("runtime, type and import are %s, want %s …", got, want)
	}
	icon, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(m.IconPath)))
	if err != nil || !strings.HasPrefix(string(icon), "\x89PNG") {
		t.Errorf("icon %q: error %v, want a PNG", m.IconPath, err)
	}
	mod := readFile(t, "../go.mod")
	for _, refused := range []string{"github.com/traefik/yaegi", "github.com/traefik/traefik",
		"github.com/traefik/mesh", "github.com/containous/"} {
		if strings.Contains(mod, refused) {
			t.Errorf("go.mod requires %s, which the catalog rejects", refused)
		}
	}
	if _, err := os.Stat("../vendor"); err == nil {
		t.Error("the repository has a vendor folder, want none")
	}
	example := m.TestData["dsn"].(string)
	if !strings.HasPrefix(example, "postgres://") {
		t.Errorf("the example's DSN is %s, want one of Postgres", example)
	}
	// an address without a server; New needs no database
	m.TestData["dsn"] = strings.Replace(example, "db.internal", "127.0.0.1:1", 1)
	if w := ask(loadPlugin(t, "DATABASE_URL=").mustHandler(t, emptyOK, m.TestData)); w.Code != http.StatusOK {
		t.Errorf("without a database: status %d %v, want 200", w.Code, w.Header())
	}
}
