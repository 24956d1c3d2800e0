package deploy

import (
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// checkLimit fails unless a request gets the fields of a limit.
func checkLimit(t *testing.T, url string, limit int) {
	t.Helper()
	response := harness.Ask(t, harness.Get(url))
	check.Equal(t, "the status", response.Status, http.StatusOK)
	check.Equal(t, "its X-RateLimit-Limit", response.Header.Get("X-RateLimit-Limit"), limit)
}

// The Caddys of the Compose file and of the manifest start, and count requests.
func TestCaddysOfContainersLimit(t *testing.T) {
	for limit, text := range map[int]string{
		10:  at[string](t, readObjects(t, "caddy/compose.yaml"), "<nil>", "configs", "caddyfile", "content"),
		100: at[string](t, readObjects(t, "kubernetes/caddy.yaml"), "ConfigMap", "data", "Caddyfile"),
	} {
		address := harness.FreeAddress(t)
		text = replaceAll(t, text, "http_port 8080",
			"http_port "+strings.TrimPrefix(address, "127.0.0.1:")+"\n\tadmin off",
			"app:80", startUpstream(t), " 1m\n", " 1m\n\t\ttimeout 50s\n\t\ton_error deny\n")
		text = strings.NewReplacer("https_port 8443", "https_port "+strconv.Itoa(harness.FreePort(t)),
			":8081", ":"+strconv.Itoa(harness.FreePort(t))).Replace(text)
		harness.RunCaddy(t, "", harness.Caddy(t, root), address, text, "DATABASE_URL="+cluster.Open(t))
		checkLimit(t, "http://"+address, limit)
	}
}

// Traefik with the arguments of the manifest and the files of the plugin's image, which are fewer than those
// of the repository, counts requests. A file provider replaces Kubernetes.
func TestTraefikOfManifestLimits(t *testing.T) {
	dir := t.TempDir()
	copyPlugin(t, filepath.Join(dir, "plugins-local"))
	traefikLimits(t, dir)
}

// traefikLimits starts the Traefik of the manifest in a folder with the plugin, and checks its limit.
func traefikLimits(t *testing.T, dir string) {
	t.Helper()
	program, err := harness.Traefik(t.Context(), filepath.Join(root, "integration"))
	check.OK(t, err)
	m := readObjects(t, "kubernetes/traefik.yaml")
	web := harness.FreeAddress(t)
	plugin := at[object](t, m, "Middleware", "spec", "plugin", "pg-ratelimit")
	plugin["timeout"], plugin["onError"] = "50s", "deny"
	rule := at[string](t, m, "IngressRoute", "spec", "routes", 0, "match")
	dynamic, err := yaml.Marshal(object{"http": object{
		"routers": object{"app": object{"rule": rule,
			"entryPoints": []string{"web"}, "service": "app", "middlewares": []string{"app-limit"}}},
		"middlewares": object{"app-limit": object{"plugin": object{"pg-ratelimit": plugin}}},
		"services": object{"app": object{"loadBalancer": object{"servers": []object{{"url": "http://" +
			startUpstream(t)}}}}},
	}})
	check.OK(t, err)
	args := []string{"--entryPoints.web.address=" + web,
		"--providers.file.filename=" + writeFile(t, filepath.Join(dir, "dynamic.yml"), string(dynamic))}
	for _, arg := range at[[]any](t, m, "Deployment", "spec", "template", "spec", "containers", 0, "args") {
		if arg := arg.(string); !strings.HasPrefix(arg, "--providers.") &&
			!strings.HasPrefix(arg, "--entryPoints.") && arg != "--ping=true" {
			args = append(args, arg)
		}
	}
	if want := "--experimental.localPlugins." + path.Base(modulePath) + ".moduleName=" +
		modulePath; !slices.Contains(args, want) {
		t.Errorf("the arguments of Traefik are %q, want %s among them", args, want)
	}
	tr := harness.Start(t, harness.Program{Name: "traefik", Path: program, Dir: dir, Args: args,
		Env: []string{"DATABASE_URL=" + cluster.Open(t)}})
	tr.AwaitAddress(t, web)
	tr.Await(t, "its router", func() bool {
		return harness.Ask(t, harness.Get("http://"+web)).Status == http.StatusOK
	})
	checkLimit(t, "http://"+web, 100)
}
