//go:build soak

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// soakProxies is how many proxies there are: Caddies, and a Traefik as the last one.
const soakProxies = 3

// soakProxy is a proxy of a soak. It can be killed, and started again on the same addresses.
type soakProxy struct {
	name, url, admin string
	start            func()
	reload           func() error
	reject           func() error // a reload with a configuration that is wrong
	process          func() *harness.Process
}

// settingsOf are the settings of a lane, in both proxies.
func settingsOf(l *lane) object {
	settings := object{"prefix": l.name, "key": "{header.X-Key}", "timeout": soakTimeout.String(), "audit": "all", "onError": l.onError}
	if l.governed {
		settings["policy"] = object{"apiKey": "{header.X-Api-Key}", "user": "{header.X-Key}"}
		delete(settings, "prefix")
		delete(settings, "key")
	}
	for name, value := range l.settings {
		settings[name] = value
	}
	return settings
}

// caddyName is the name of a setting of Traefik in Caddy.
var caddyName = strings.NewReplacer("onError", "on_error", "synchronousCommit", "synchronous_commit", "apiKey", "api_key")

// soakCaddyfile is the configuration of a Caddy. limit replaces the first limit, if it is not "".
func soakCaddyfile(name, address, admin, dsn, upstream, limit string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\n\tadmin %s\n\tpersist_config off\n\tauto_https off\n\tservers {\n\t\tprotocols h1\n\t}\n\tpg_ratelimit {\n\t\tdsn %q\n\t\tnode_name %s\n\t\thistory {\n\t\t\tregion %s\n\t\t}\n\t}\n}\nhttp://%s {\n",
		admin, dsn, name, name, address)
	for i := range lanes {
		l := &lanes[i]
		fmt.Fprintf(&b, "\thandle /%s {\n", l.name)
		if l.onError != "" {
			settings := settingsOf(l)
			if limit != "" && settings["limit"] != nil {
				settings["limit"], limit = limit, ""
			}
			b.WriteString("\t\tpg_ratelimit {\n")
			for setting, value := range settings {
				if block, ok := value.(object); ok {
					fmt.Fprintf(&b, "\t\t\t%s {\n", setting)
					for setting, value := range block {
						fmt.Fprintf(&b, "\t\t\t\t%s %v\n", caddyName.Replace(setting), value)
					}
					b.WriteString("\t\t\t}\n")
					continue
				}
				fmt.Fprintf(&b, "\t\t\t%s %s\n", caddyName.Replace(setting), strings.ReplaceAll(fmt.Sprint(value), "true", "on"))
			}
			b.WriteString("\t\t}\n")
		}
		fmt.Fprintf(&b, "\t\treverse_proxy %s\n\t}\n", strings.TrimPrefix(upstream, "http://"))
	}
	return b.String() + "}\n"
}

func newSoakCaddy(t *testing.T, binary, name, dsn, upstream string) *soakProxy {
	t.Helper()
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	config := soakCaddyfile(name, address, admin, dsn, upstream, "")
	var running *caddy
	p := &soakProxy{name: name, url: "http://" + address, admin: "http://" + admin}
	p.start = func() {
		running = launchConfig(t, binary, address, config)
		running.AwaitAddress(t, address)
	}
	load := func(config string, want int) error {
		if answer := loadConfig(t, admin, config); answer.Status != want {
			return fmt.Errorf("%s: a reload is answered %d %s, want %d", name, answer.Status, answer.Body, want)
		}
		return nil
	}
	p.reload = func() error { return load(config, http.StatusOK) }
	p.reject = func() error {
		return load(soakCaddyfile(name, address, admin, dsn, upstream, "many 1h"), http.StatusBadRequest)
	}
	p.process = func() *harness.Process { return running.Process }
	p.start()
	return p
}

func newSoakTraefik(t *testing.T, name, dsn, upstream string) *soakProxy {
	t.Helper()
	var routes []route
	for i := range lanes {
		l := &lanes[i]
		r := route{"/" + l.name, upstream, nil}
		if l.onError != "" {
			r.limit = settingsOf(l)
			r.limit["nodeName"], r.limit["history"] = name, object{"region": name}
		}
		routes = append(routes, r)
	}
	environment := "DATABASE_URL=" + dsn
	tr := startTraefik(t, routes, environment)
	dir := filepath.Dir(tr.dynamic)
	return &soakProxy{name: name, url: tr.url, admin: tr.admin,
		start: func() {
			tr.Process = harness.Start(t, harness.Program{Name: name, Path: traefikProgram(t), Dir: dir, Env: []string{environment}, Args: []string{"--configFile=" + filepath.Join(dir, "traefik.yml")}})
			tr.AwaitAddress(t, strings.TrimPrefix(tr.url, "http://"))
			tr.awaitGeneration(t)
		},
		reload:  func() error { tr.reload(t, routes); return nil },
		reject:  func() error { tr.reject(t); tr.reload(t, routes); return nil },
		process: func() *harness.Process { return tr.Process },
	}
}

// startSoakProxies starts the proxies.
func startSoakProxies(t *testing.T, dsn, upstream string, leaking bool) (all []*soakProxy) {
	t.Helper()
	binary := ""
	if leaking {
		binary = leakingCaddy(t)
	} else {
		binary = buildCaddy(t)
	}
	for i := range soakProxies - 1 {
		all = append(all, newSoakCaddy(t, binary, fmt.Sprint("caddy", i+1), dsn, upstream))
	}
	return append(all, newSoakTraefik(t, "traefik", dsn, upstream))
}

// leakingCaddy builds a Caddy that leaks a goroutine a minute.
func leakingCaddy(t *testing.T) string {
	t.Helper()
	leak, err := filepath.Abs("testdata/soak/leak.go")
	if err != nil {
		t.Fatal(err)
	}
	module, err := filepath.Abs("../xcaddy")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(object{"Replace": map[string]string{filepath.Join(module, "leak.go"): leak}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return harness.Build(t, module, ".", "-tags", "nobadger,nomysql,nopgx", "-overlay", overlay)
}
