package docs

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/mitchellh/mapstructure"
	"gopkg.in/yaml.v3"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/traefikplugin"
)

// traefikYAML has the fields of Traefik's configuration files that the documentation shows. Other fields are
// errors.
type traefikYAML struct {
	Experimental *struct {
		AbortOnPluginFailure bool                    `yaml:"abortOnPluginFailure"`
		LocalPlugins         map[string]pluginSource `yaml:"localPlugins"`
		Plugins              map[string]pluginSource
	}
	Providers   *struct{ File struct{ Filename string } }
	EntryPoints map[string]struct {
		Address          string
		ForwardedHeaders struct {
			TrustedIPs []string `yaml:"trustedIPs"`
		} `yaml:"forwardedHeaders"`
	} `yaml:"entryPoints"`
	HTTP *traefikHTTP
}

type pluginSource struct {
	ModuleName string `yaml:"moduleName"`
	Version    string // of a published plugin
}

type traefikHTTP struct {
	Middlewares map[string]*traefikMiddleware
	Routers     map[string]*struct {
		Rule, Service string
		Middlewares   []string
		ParentRefs    []string `yaml:"parentRefs"`
	}
	Services map[string]*struct {
		LoadBalancer struct {
			PassHostHeader bool `yaml:"passHostHeader"`
			Servers        []struct{ URL string }
		} `yaml:"loadBalancer"`
	}
}

type traefikMiddleware struct {
	Plugin    map[string]map[string]any
	BasicAuth *struct {
		Users       []string
		HeaderField string `yaml:"headerField"`
	} `yaml:"basicAuth"`
	Headers *struct {
		CustomRequestHeaders map[string]string `yaml:"customRequestHeaders"`
	}
}

// Each YAML block has only fields of its format, and a middleware in it admits a request with the plugin.
func TestTraefikConfigurationsOfPagesAreValid(t *testing.T) {
	for _, b := range blocksIn(t, "yaml") {
		t.Run(b.String(), func(t *testing.T) {
			t.Setenv("DATABASE_URL", unreachable)
			t.Setenv("LIMITS_DSN", unreachable)
			var c traefikYAML
			decoder := yaml.NewDecoder(strings.NewReader(renderTemplates(t, b.text)))
			decoder.KnownFields(true)
			check.OK(t, decoder.Decode(&c))
			switch {
			case c.Experimental != nil:
				if !c.Experimental.AbortOnPluginFailure {
					t.Error("abortOnPluginFailure is not set, want Traefik to fail without its plugin")
				}
				checkPluginSources(t, c.Experimental.LocalPlugins, "")
				checkPluginSources(t, c.Experimental.Plugins, host.Version)
			case c.EntryPoints != nil:
				// TestReports runs a Traefik with these settings.
				if !hasTest(t, "integration/reports", "TestReports") ||
					len(c.EntryPoints["web"].ForwardedHeaders.TrustedIPs) == 0 {
					t.Errorf("no test runs a Traefik with these entry points: %+v", c.EntryPoints)
				}
			case c.HTTP != nil:
				checkMiddlewares(t, c.HTTP)
			default:
				t.Error("the block is none of the parts of a configuration that this test checks")
			}
		})
	}
}

// renderTemplates fills in the templates of Traefik's file provider.
func renderTemplates(t *testing.T, text string) string {
	t.Helper()
	parsed, err := template.New("file provider").Funcs(template.FuncMap{"env": os.Getenv}).Parse(text)
	check.OK(t, err)
	var out strings.Builder
	check.OK(t, parsed.Execute(&out, nil))
	return out.String()
}

// checkPluginSources checks the name, the module and the version of the plugin in a configuration.
func checkPluginSources(t *testing.T, sources map[string]pluginSource, version string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-m")
	cmd.Dir = root
	module, err := cmd.Output()
	check.OK(t, err)
	for name, source := range sources {
		if want := (pluginSource{strings.TrimSpace(string(module)), version}); source != want {
			t.Errorf("the plugin %s is %+v, want %+v", name, source, want)
		}
		check.Equal(t, "the plugin", name, "pg-ratelimit")
	}
}

// checkMiddlewares creates each middleware, on its database and in memory, and sends a request to it. Routers
// name only middlewares and routers of the block.
func checkMiddlewares(t *testing.T, c *traefikHTTP) {
	t.Helper()
	if len(c.Middlewares) == 0 {
		t.Error("the block has no middlewares")
	}
	for name, m := range c.Middlewares {
		if m.BasicAuth != nil || m.Headers != nil {
			continue // a middleware of Traefik itself
		}
		settings := m.Plugin["pg-ratelimit"]
		if len(m.Plugin) != 1 || settings == nil {
			t.Fatalf("middleware %s has the plugins %v, want pg-ratelimit", name, m.Plugin)
		}
		if dsn, ok := settings["dsn"].(string); ok {
			// No test resolves a name.
			settings["dsn"] = strings.Replace(dsn, "db.internal", "127.0.0.1:1", 1)
		}
		if settings["dsnFile"] != nil {
			settings["dsnFile"] = writeConfig(t, "dsn", unreachable+"\n")
		}
		onDatabase := middleware(t, settings)
		if settings["policy"] != nil || settings["history"] != nil { // these need Postgres
			if response := ask(onDatabase, "X-Api-Key", "k"); response.Code != http.StatusOK {
				t.Errorf("middleware %s without its database: status %d, want 200", name, response.Code)
			}
			continue
		}
		delete(settings, "dsnFile")
		settings["dsn"] = "memory"
		response := ask(middleware(t, settings))
		if response.Code != http.StatusOK || response.Header().Get("X-RateLimit-Limit") == "" {
			t.Errorf("middleware %s: %d %v, want 200 with X-RateLimit-Limit", name, response.Code,
				response.Header())
		}
	}
	for name, router := range c.Routers {
		for _, m := range router.Middlewares {
			if c.Middlewares[m] == nil {
				t.Errorf("router %s names the middleware %s, want one of the block", name, m)
			}
		}
		for _, parent := range router.ParentRefs {
			if c.Routers[parent] == nil {
				t.Errorf("router %s is below %s, want a router of the block", name, parent)
			}
		}
	}
}

// middleware creates a middleware of the plugin from settings, which it decodes as Traefik does. Unknown
// settings, which Traefik drops, are errors.
func middleware(t *testing.T, settings map[string]any) http.Handler {
	t.Helper()
	config := traefikplugin.CreateConfig()
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		DecodeHook:       mapstructure.StringToSliceHookFunc(","),
		WeaklyTypedInput: true,
		ErrorUnused:      true,
		Result:           config,
	})
	check.OK(t, err)
	check.OK(t, decoder.Decode(settings))
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	h, err := traefikplugin.New(t.Context(), next, config, "snippet@file")
	check.OK(t, err)
	return h
}

// ask sends a request from 203.0.113.9. headers are names and values in turn.
func ask(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "203.0.113.9:40000"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// lastOfCell matches the last name in the first column of a row. If a setting has two names, the last is
// Traefik's.
var lastOfCell = regexp.MustCompile("(?m)^\\|[^|]*`([^`|]+)` \\|")

// traefikNames returns Traefik's names of the settings in a section's tables.
func traefikNames(t *testing.T, title string) []string {
	t.Helper()
	var names []string
	for _, match := range lastOfCell.FindAllStringSubmatch(section(t, settingsPage, title), -1) {
		names = append(names, match[1])
	}
	return names
}

// The tables of docs/generated/settings.md and docs/traefik.md have each setting that the fields of Traefik's
// configuration name.
func TestTablesOfTraefikSettingsAreComplete(t *testing.T) {
	names := slices.Concat(traefikNames(t, "A limit"), traefikNames(t, "The handler"),
		traefikNames(t, "The database"), traefikNames(t, "The history"))
	for _, c := range []any{traefikplugin.Config{}, traefikplugin.Zone{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(c)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "-" && !slices.Contains(names, name) {
				t.Errorf("docs/generated/settings.md lacks %s of %T", name, c)
			}
		}
	}
	sameNames(t, "docs/traefik.md, The client's address,", tableNames(t, "docs/traefik.md",
		"The client's address"), []string{"depth", "excludedIPs", "ipv6Subnet"})
}
