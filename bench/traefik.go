package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// object is a JSON object of a configuration file.
type object = map[string]any

// pluginModule is the module that Traefik interprets.
const pluginModule = "github.com/pgratelimit/pg-ratelimit"

// respondAsUpstream responds "ok", or to a prompt as a language model.
func respondAsUpstream(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		_, _ = io.WriteString(w, "ok")
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, answer)
}

// startTraefik starts p as a Traefik. Traefik cannot respond itself.
func (b *bench) startTraefik(p *proxy) *harness.Process {
	if b.traefik == "" {
		b.traefik = must(harness.Traefik(b.ctx, filepath.Join(root, "integration")))
	}
	router := object{"entryPoints": []string{"web"}, "rule": "PathPrefix(`/`)", "service": "ok"}
	config := object{
		"routers":  object{"all": router},
		"services": object{"ok": object{"loadBalancer": object{"servers": []object{{"url": p.upstream}}}}},
	}
	args := []string{
		"--global.checkNewVersion=false", "--global.sendAnonymousUsage=false", "--log.level=ERROR",
		"--log.noColor=true",
		"--entryPoints.web.address=" + p.address, "--providers.file.watch=false",
	}
	if middleware := traefikLimit(p); middleware != nil {
		config["middlewares"] = object{"limit": middleware}
		router["middlewares"] = []string{"limit"}
	}
	if p.row.limit != nil && !p.row.limit.forwardAuth {
		args = append(args, "--experimental.localPlugins.pg-ratelimit.moduleName="+pluginModule)
	}
	yaml := must(json.Marshal(object{"http": config})) // JSON is valid YAML
	return b.launch(p.row.name, b.pluginFolder(p.row), b.traefik,
		append(args, "--providers.file.filename="+b.writeTemp("yml", string(yaml)))...)
}

// pluginFolder returns the working folder of a Traefik, in which Traefik searches for local plugins.
func (b *bench) pluginFolder(r *row) string {
	dir, source := filepath.Join(b.dir, "plugin"), root
	if r.ofBaseVersion {
		dir, source = filepath.Join(b.dir, "plugin-before"), b.baseDir
	}
	link := filepath.Join(dir, "plugins-local", "src", filepath.FromSlash(pluginModule))
	check(os.MkdirAll(filepath.Dir(link), 0o755))
	if err := os.Symlink(must(filepath.Abs(source)), link); !errors.Is(err, fs.ErrExist) {
		check(err)
	}
	return dir
}

// traefikLimit returns the middleware of a Traefik, or nil without a limit.
func traefikLimit(p *proxy) object {
	switch l := p.row.limit; {
	case l == nil:
		return nil
	case l.peer != "":
		limit := object{
			"average": l.events(), "period": l.window(), "burst": l.events(),
			"sourceCriterion": object{"requestHeaderName": keyHeader},
		}
		if l.peer == onRedis {
			// In database 0, redis_rate has keys with the same names and another type.
			limit["redis"] = object{"endpoints": []string{p.redis}, "db": 1}
		}
		return object{"rateLimit": limit}
	case l.forwardAuth:
		return object{"forwardAuth": object{"address": "http://" + p.decider.address,
			"maxResponseBodySize": 65536}}
	case l.policy:
		return object{"plugin": object{"pg-ratelimit": object{
			"dsn": p.dsn, "timeout": decisionTimeout, "onError": "deny",
			"policy": object{"apiKey": "{header." + keyHeader + "}"},
		}}}
	default:
		settings := object{
			"dsn": p.dsn, "prefix": "api", "key": "{header." + keyHeader + "}",
			"algorithm": "sliding_window", "limit": l.limit, "lease": cmp.Or(l.lease, "off"),
			"timeout": decisionTimeout, "onError": "deny",
		}
		if l.unit != "" {
			settings["unit"] = l.unit
		}
		return object{"plugin": object{"pg-ratelimit": settings}}
	}
}
