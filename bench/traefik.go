package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// object is an object of a configuration file.
type object = map[string]any

// pluginModule is the module that Traefik interprets.
const pluginModule = "github.com/pgratelimit/pg-ratelimit"

// startTraefik starts p as a Traefik. Traefik has no handler that answers, so it
// stands in front of an upstream in this process, which says ok.
func (b *bench) startTraefik(p *proxy) *harness.Process {
	if b.traefik == "" {
		b.traefik = must(harness.Traefik(b.ctx, filepath.Join(root, "integration")))
		// Traefik looks for local plugins below the folder in which it runs.
		link := filepath.Join(b.dir, "plugins-local", "src", filepath.FromSlash(pluginModule))
		check(os.MkdirAll(filepath.Dir(link), 0o755))
		check(os.Symlink(must(filepath.Abs(root)), link))
		b.upstream = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })).URL
	}
	router := object{"entryPoints": []string{"web"}, "rule": "PathPrefix(`/`)", "service": "ok"}
	config := object{
		"routers":  object{"all": router},
		"services": object{"ok": object{"loadBalancer": object{"servers": []object{{"url": b.upstream}}}}},
	}
	args := []string{
		"--global.checkNewVersion=false", "--global.sendAnonymousUsage=false", "--log.level=ERROR",
		"--entryPoints.web.address=" + p.address, "--providers.file.watch=false",
	}
	if middleware := b.traefikLimit(p); middleware != nil {
		config["middlewares"] = object{"limit": middleware}
		router["middlewares"] = []string{"limit"}
	}
	if p.spec.limit != nil {
		args = append(args, "--experimental.localPlugins.pg_ratelimit.moduleName="+pluginModule)
	}
	text := must(json.Marshal(object{"http": config})) // JSON is YAML, too
	return b.launch(p.spec.name, b.traefik, append(args, "--providers.file.filename="+b.file("yml", string(text)))...)
}

// traefikLimit is the middleware of a Traefik, or nil.
func (b *bench) traefikLimit(p *proxy) object {
	switch s := p.spec; {
	case s.builtin:
		limit := object{
			"average": 1000000, "period": "1h", "burst": 1000000, // ample
			"sourceCriterion": object{"requestHeaderName": keyHeader},
		}
		if s.redis {
			if b.redis == nil {
				b.startRedis()
			}
			limit["redis"] = object{"endpoints": []string{b.redisAddress}}
		}
		return object{"rateLimit": limit}
	case s.limit != nil:
		limit := object{
			"dsn": p.dsn, "prefix": "api", "key": "{header." + keyHeader + "}",
			"algorithm": "sliding_window", "limit": s.limit.limit, "timeout": decisionTimeout, "onError": "deny",
		}
		for name, value := range map[string]string{"lease": s.limit.lease, "headers": s.limit.headers} {
			if value != "" {
				limit[name] = value
			}
		}
		return object{"plugin": object{"pg_ratelimit": limit}}
	}
	return nil
}

// startRedis starts the Redis of Traefik's own limiter. It keeps nothing on disk,
// which is the fastest way to run it.
func (b *bench) startRedis() {
	b.redisServer = tool("redis-server")
	b.redisAddress = must(harness.FindAddress())
	host, port, _ := net.SplitHostPort(b.redisAddress)
	b.redis = b.launch("redis", b.redisServer, "--bind", host, "--port", port, "--save", "", "--appendonly", "no")
	check(b.redis.WaitFor("it to listen on "+b.redisAddress, func() bool {
		conn, err := net.Dial("tcp", b.redisAddress)
		return err == nil && conn.Close() == nil
	}))
}
