package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// traefik is a Traefik process with this repository as its local plugin.
type traefik struct {
	*harness.Process
	url        string // of its entry point
	admin      string // of its API
	dynamic    string // the file of its dynamic configuration
	generation int
}

// object is an object of a configuration file.
type object = map[string]any

// startTraefik starts a Traefik that serves the routes, and waits until it does.
func startTraefik(t testing.TB, routes []route, env ...string) *traefik {
	t.Helper()
	return startTraefikWith(t, object{}, "INFO", routes, env...)
}

// startTraefikWith is startTraefik with further settings of the entry point, and with another
// level of the log.
func startTraefikWith(t testing.TB, entryPoint object, logLevel string, routes []route, env ...string) *traefik {
	t.Helper()
	return startTraefikOf(t, "..", entryPoint, logLevel, routes, env...)
}

// startTraefikOf is startTraefikWith with the plugin of another checkout of the repository.
func startTraefikOf(t testing.TB, root string, entryPoint object, logLevel string, routes []route, env ...string) *traefik {
	t.Helper()
	program := traefikProgram(t)
	dir := t.TempDir()
	linkPlugin(t, root, filepath.Join(dir, "plugins-local"))
	web, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	tr := &traefik{url: "http://" + web, admin: "http://" + admin, dynamic: filepath.Join(dir, "dynamic.yml")}
	entryPoint["address"] = web
	writeYAML(t, filepath.Join(dir, "traefik.yml"), object{
		"global":      object{"checkNewVersion": false, "sendAnonymousUsage": false},
		"log":         object{"level": logLevel, "noColor": true},
		"entryPoints": object{"web": entryPoint, "traefik": object{"address": admin}},
		"api":         object{"insecure": true, "debug": true, "dashboard": false},
		"providers": object{
			"providersThrottleDuration": "1ms",
			"file":                      object{"filename": tr.dynamic, "watch": true},
		},
		"experimental": object{"localPlugins": object{"pg_ratelimit": object{"moduleName": modulePath}}},
	})
	tr.write(t, routes)
	tr.Process = harness.Start(t, harness.Program{Name: "traefik", Path: program, Dir: dir, Env: env, Args: []string{"--configFile=" + filepath.Join(dir, "traefik.yml")}})
	t.Cleanup(func() {
		log := tr.Log()
		for _, line := range strings.Split(log, "\n") {
			if strings.Contains(line, "panic") {
				t.Errorf("something panicked in Traefik: %s\n%s", line, log)
				break
			}
		}
	})
	tr.AwaitAddress(t, web)
	tr.awaitGeneration(t)
	return tr
}

// route is a path in Traefik, its backend, and the plugin's configuration, nil for none.
type route struct {
	path    string
	backend string // a URL
	limit   object
}

// write writes the next generation of the dynamic configuration. The route /generation
// shows which generation is served.
func (tr *traefik) write(t testing.TB, routes []route) {
	t.Helper()
	tr.generation++
	routers, services, middlewares := object{}, object{}, object{
		"generation": object{"redirectRegex": object{"regex": ".*", "replacement": "http://generation/" + strconv.Itoa(tr.generation)}},
	}
	routers["generation"] = object{"entryPoints": []string{"web"}, "rule": "Path(`/generation`)", "service": "noop@internal", "middlewares": []string{"generation"}}
	for i, r := range routes {
		name := "r" + strconv.Itoa(i)
		router := object{"entryPoints": []string{"web"}, "rule": "PathPrefix(`" + r.path + "`)", "service": name}
		if r.limit != nil {
			middlewares[name] = object{"plugin": object{"pg_ratelimit": r.limit}}
			router["middlewares"] = []string{name}
		}
		routers[name] = router
		services[name] = object{"loadBalancer": object{"servers": []object{{"url": r.backend}}}}
	}
	writeYAML(t, tr.dynamic, object{"http": object{"routers": routers, "services": services, "middlewares": middlewares}})
}

// reload has the routes served, and waits until they are.
func (tr *traefik) reload(t testing.TB, routes []route) {
	t.Helper()
	tr.write(t, routes)
	tr.awaitGeneration(t)
}

// reject has a file rejected. A wrong setting of a middleware removes its routers; a file that Traefik cannot
// read changes nothing.
func (tr *traefik) reject(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(tr.dynamic+".new", []byte("http: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	complaints := strings.Count(tr.Log(), "yaml:")
	if err := os.Rename(tr.dynamic+".new", tr.dynamic); err != nil {
		t.Fatal(err)
	}
	tr.Await(t, "the file to be rejected", func() bool { return strings.Count(tr.Log(), "yaml:") > complaints })
}

func (tr *traefik) awaitGeneration(t testing.TB) {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	want := "http://generation/" + strconv.Itoa(tr.generation)
	tr.Await(t, "its configuration", func() bool {
		response, err := client.Get(tr.url + "/generation")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.Header.Get("Location") == want
	})
}

// writeYAML replaces a file at once: a reader sees the old file or the new one.
func writeYAML(t testing.TB, path string, content any) {
	t.Helper()
	text, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// startBackend starts the server behind the proxies. It answers 200, ok.
func startBackend(t testing.TB) string {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	t.Cleanup(backend.Close)
	return backend.URL
}
