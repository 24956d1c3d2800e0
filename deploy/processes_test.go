package deploy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
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

// startUpstream starts an app that responds "app", and returns its address.
func startUpstream(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "app") }))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// checkLimit sends limit+1 requests, and fails unless exactly the last one is refused.
func checkLimit(t *testing.T, url string, limit int) {
	t.Helper()
	for i := range limit + 1 {
		want := http.StatusOK
		if i == limit {
			want = http.StatusTooManyRequests
		}
		response := harness.Ask(t, harness.Get(url))
		check.Equal(t, "the status of request "+strconv.Itoa(i+1), response.Status, want)
		check.Equal(t, "its X-RateLimit-Limit", response.Header.Get("X-RateLimit-Limit"), limit)
	}
}

// replaceAll replaces the first text of each pair with the second, and fails if the first does not occur.
func replaceAll(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("the text has no %q:\n%s", pairs[i], text)
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// slowMachineOptions gives each request 50 s for its decision.
const slowMachineOptions = "\n\t\ttimeout 50s\n\t\ton_error deny\n"

// runningCaddy is a Caddy with the configuration of a container. It listens on free ports of this machine.
type runningCaddy struct {
	*harness.Process
	url     string
	folders *strings.Replacer // from paths in the image
}

// startCaddy runs a Caddyfile as the image does. pairs are further texts to replace.
func startCaddy(t *testing.T, caddyfile string, pairs ...string) runningCaddy {
	t.Helper()
	i, dir, address := ourImage(t), t.TempDir(), harness.FreeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	text := replaceAll(t, caddyfile, append([]string{
		"http_port 8080", "http_port " + port + "\n\tadmin " + harness.FreeAddress(t), "app:80",
		startUpstream(t),
		" 1m\n", " 1m" + slowMachineOptions}, pairs...)...)
	c := runningCaddy{url: "http://" + address,
		folders: strings.NewReplacer("/config", dir, "/data", dir, "/etc/caddy", dir)}
	writeFile(t, filepath.Join(dir, "Caddyfile"), text)
	args := slices.Clone(i.command)
	for i := range args {
		args[i] = c.folders.Replace(args[i])
	}
	env := []string{"DATABASE_URL=" + cluster.Open(t)}
	for _, name := range []string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		env = append(env, name+"="+c.folders.Replace(i.env[name]))
	}
	c.Process = harness.Start(t, harness.Program{Name: "caddy", Path: harness.Caddy(t, root), Args: args,
		Env: env, Dir: dir})
	c.AwaitAddress(t, address)
	return c
}

// The Caddy of the Compose file refuses the request after its limit. The image's health check succeeds
// without a reload of the configuration while Caddy runs, and fails after Caddy has stopped.
func TestCaddyOfComposeFileLimitsAndIsHealthy(t *testing.T) {
	caddyfile := compose(t, "caddy/compose.yaml").Configs["caddyfile"].Content
	c := startCaddy(t, caddyfile, "https_port 8443", "https_port "+strconv.Itoa(harness.FreePort(t)))
	checkLimit(t, c.url, 10)
	probe := func() error {
		args := slices.Clone(ourImage(t).health[2:])
		for i := range args {
			args[i] = c.folders.Replace(args[i])
		}
		return exec.Command(harness.Caddy(t, root), args...).Run()
	}
	if err := probe(); err != nil {
		t.Errorf("the health check of a running Caddy: error %v, want none", err)
	}
	if !strings.Contains(c.Log(), "config is unchanged") {
		t.Error("the log has no \"config is unchanged\", so the health check loads the configuration")
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if probe() == nil {
		t.Error("the health check of a stopped Caddy succeeds, want an error")
	}
}

// runningTraefik is a Traefik with the configuration of a container.
type runningTraefik struct {
	*harness.Process
	url          string
	adminAddress string // of the entry point traefik
}

// startTraefik runs Traefik with the arguments of a container, except that a file provider replaces
// Kubernetes. plugins creates the folder plugins-local at the path folder.
func startTraefik(t *testing.T, args []string, rule string, plugin map[string]any,
	plugins func(folder string)) runningTraefik {
	t.Helper()
	program, err := harness.Traefik(t.Context(), filepath.Join(root, "integration"))
	if err != nil {
		t.Fatal(err)
	}
	dir, web := t.TempDir(), harness.FreeAddress(t)
	tr := runningTraefik{url: "http://" + web, adminAddress: harness.FreeAddress(t)}
	plugins(filepath.Join(dir, "plugins-local"))
	type object = map[string]any
	plugin["timeout"], plugin["onError"], plugin["match"] = "50s", "deny",
		object{"methods": []string{http.MethodGet}}
	dynamic, err := yaml.Marshal(object{"http": object{
		"routers": object{"app": object{"rule": rule, "entryPoints": []string{"web"}, "service": "app",
			"middlewares": []string{"app-limit"}}},
		"middlewares": object{"app-limit": object{"plugin": object{"pg-ratelimit": plugin}}},
		"services": object{"app": object{"loadBalancer": object{"servers": []object{{"url": "http://" +
			startUpstream(t)}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--experimental.localPlugins." + path.Base(modulePath) + ".moduleName=" +
		modulePath, "--experimental.abortOnPluginFailure=true"} {
		if !slices.Contains(args, want) {
			t.Errorf("the arguments of Traefik are %q, want %s among them", args, want)
		}
	}
	var ownArgs []string
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		if !strings.HasPrefix(name, "--providers.") && !strings.HasPrefix(name, "--entryPoints.") {
			ownArgs = append(ownArgs, arg)
		}
	}
	ownArgs = append(ownArgs, "--entryPoints.web.address="+web,
		"--entryPoints.traefik.address="+tr.adminAddress,
		"--providers.file.filename="+writeFile(t, filepath.Join(dir, "dynamic.yml"), string(dynamic)))
	tr.Process = harness.Start(t, harness.Program{Name: "traefik", Path: program, Dir: dir, Args: ownArgs,
		Env: []string{"DATABASE_URL=" + cluster.Open(t)}})
	tr.AwaitAddress(t, web)
	// PROPFIND does not match the limit, so it is not charged.
	tr.Await(t, "its router", func() bool {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		request, err := http.NewRequest("PROPFIND", tr.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return tr
}

// Traefik with the arguments of the manifest and the files of the plugin's image, which are fewer than those
// of the repository, refuses the request after the limit. Its readiness probe succeeds.
func TestTraefikOfManifestLimitsAndIsReady(t *testing.T) {
	m := readManifest(t, "kubernetes/traefik.yaml")
	tr := startTraefik(t, m.container().Args, m.route.Spec.Routes[0].Match,
		m.middleware.Spec.Plugin["pg-ratelimit"], func(folder string) {
			for _, path := range pluginFiles(t) {
				from, to := filepath.Join(root, path), filepath.Join(folder, "src", modulePath, path)
				info, err := os.Stat(from)
				if err == nil && info.IsDir() {
					err = os.CopyFS(to, os.DirFS(from))
				} else if err == nil {
					var text []byte
					if text, err = os.ReadFile(from); err == nil {
						if err = os.MkdirAll(filepath.Dir(to), 0o700); err == nil {
							err = os.WriteFile(to, text, 0o600)
						}
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	checkLimit(t, tr.url, 100)
	probe := harness.Ask(t, harness.Get("http://"+tr.adminAddress+m.container().ReadinessProbe.HTTPGet.Path))
	check.Equal(t, "the status of the readiness probe", probe.Status, http.StatusOK)
}
