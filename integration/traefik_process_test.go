package integration

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// traefik is a Traefik process with this repository as its local plugin.
type traefik struct {
	*harness.Process
	program harness.Program
	// url is the URL of the entry point, and admin the URL of the API.
	url, admin string
	// dynamic is the path of the dynamic configuration, and generation the number of its latest version.
	dynamic    string
	generation int
	// backend is the URL of the server behind routes without a backend.
	backend string
}

// object is an object of a configuration file.
type object = harness.Object

// startTraefik starts a Traefik that serves the routes, and waits until it does.
func startTraefik(t testing.TB, routes []route, env ...string) *traefik {
	t.Helper()
	return startTraefikWith(t, "..", object{}, "INFO", routes, env...)
}

// startTraefikWith is like startTraefik but has the plugin of the tree at root, further settings of the entry
// point, and another log level.
func startTraefikWith(t testing.TB, root string, entryPoint object, logLevel string, routes []route,
	env ...string) *traefik {
	t.Helper()
	web, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	entryPoint["address"] = web
	tr := &traefik{url: "http://" + web, admin: "http://" + admin, backend: startBackend(t)}
	build := func(ctx context.Context, _ string) (string, error) { // for an older tree, too
		return harness.Traefik(ctx, ".")
	}
	tr.program = harness.TraefikProgram(t, filepath.Join(root, "integration"), build, object{
		"log":         object{"level": logLevel, "noColor": true},
		"entryPoints": object{"web": entryPoint, "traefik": object{"address": admin}},
		"api":         object{"insecure": true, "debug": true, "dashboard": false},
	}, nil, env...)
	tr.dynamic = filepath.Join(tr.program.Dir, "dynamic.yml")
	tr.write(t, routes)
	tr.start(t)
	return tr
}

// start starts the process. It can start the process again after it has ended.
func (tr *traefik) start(t testing.TB) {
	t.Helper()
	p := harness.Start(t, tr.program)
	t.Cleanup(func() { checkNoPanic(t, "Traefik", p.Log()) })
	tr.Process = p
	tr.AwaitAddress(t, strings.TrimPrefix(tr.url, "http://"))
	tr.awaitGeneration(t)
}

// write writes the next generation of the dynamic configuration. The route /generation
// shows which generation is served.
func (tr *traefik) write(t testing.TB, routes []route) {
	t.Helper()
	tr.generation++
	routers, services, middlewares := object{}, object{}, object{
		"generation": object{"redirectRegex": object{"regex": ".*", "replacement": "http://generation/" +
			strconv.Itoa(tr.generation)}},
	}
	routers["generation"] = object{"entryPoints": []string{"web"}, "rule": "Path(`/generation`)",
		"service": "noop@internal", "middlewares": []string{"generation"}}
	for i, r := range routes {
		name := "r" + strconv.Itoa(i)
		router := object{"entryPoints": []string{"web"}, "rule": "PathPrefix(`" + r.path + "`)",
			"service": name}
		if r.limit != nil {
			middlewares[name] = object{"plugin": object{"pg-ratelimit": r.limit}}
			router["middlewares"] = []string{name}
		}
		routers[name] = router
		services[name] = object{"loadBalancer": object{"servers": []object{{"url": cmp.Or(r.backend,
			tr.backend)}}}}
	}
	harness.WriteYAML(t, tr.dynamic, object{"http": object{"routers": routers, "services": services,
		"middlewares": middlewares}})
}

// reload replaces the routes, and waits until Traefik serves them.
func (tr *traefik) reload(t testing.TB, routes []route) {
	t.Helper()
	tr.write(t, routes)
	tr.awaitGeneration(t)
}

// reject makes Traefik reject a file that it cannot read, which changes nothing. A wrong setting of a
// middleware would remove its routers.
func (tr *traefik) reject(t testing.TB) {
	t.Helper()
	valid := readFile(t, tr.dynamic)
	complaints := strings.Count(tr.Log(), "yaml:")
	replaceFile(t, tr.dynamic, "http: [\n")
	tr.Await(t, "the file to be rejected",
		func() bool { return strings.Count(tr.Log(), "yaml:") > complaints })
	replaceFile(t, tr.dynamic, valid)
}

func (tr *traefik) awaitGeneration(t testing.TB) {
	t.Helper()
	client, closeIdle := harness.NewClient(1)
	defer closeIdle()
	want := "http://generation/" + strconv.Itoa(tr.generation)
	tr.Await(t, "its configuration", func() bool {
		response, err := harness.AskBy(client, harness.Get(tr.url+"/generation"))
		return err == nil && response.Header.Get("Location") == want
	})
}

// readFile returns the text of a file.
func readFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// replaceFile creates or replaces a file atomically.
func replaceFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// startBackend starts the server behind the proxies, which responds "ok", and returns its URL.
func startBackend(t testing.TB) string {
	t.Helper()
	return harness.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "ok")
	})
}

// checkNoPanic fails the test if the log of a process has a panic.
func checkNoPanic(t testing.TB, name, log string) {
	t.Helper()
	if i := strings.Index(log, "panic"); i >= 0 {
		t.Errorf("the log of %s has a panic: %.3000s", name, log[i:])
	}
}
