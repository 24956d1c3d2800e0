package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"gopkg.in/yaml.v3"
)

// object is an object of a configuration file.
type object = map[string]any

// startTraefik starts a Traefik in front of an upstream that says ok: unlike
// Caddy, it has no handler of its own that answers. With -no-upstream its service
// ping@internal does, which nobody would put a limit on, but which shows more of
// what a middleware costs. The repository is its local plugin.
func (b *bench) startTraefik(ctx context.Context, s *proxySpec) (*proxy, error) {
	p := &proxy{spec: s}
	var err error
	if p.address, err = freeAddress(); err != nil {
		return nil, err
	}
	if p.dsn, err = b.dsnFor(ctx, s); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "traefik-")
	if err != nil {
		return nil, err
	}
	static := object{
		"global":      object{"checkNewVersion": false, "sendAnonymousUsage": false},
		"log":         object{"level": "ERROR", "noColor": true},
		"entryPoints": object{"web": object{"address": p.address}},
		"ping":        object{"manualRouting": true},
		"providers":   object{"file": object{"filename": filepath.Join(dir, "dynamic.yml"), "watch": false}},
	}
	router := object{"entryPoints": []string{"web"}, "rule": "PathPrefix(`/`)", "service": "ok"}
	dynamic := object{"routers": object{"all": router}}
	if b.noUpstream {
		router["service"] = "ping@internal"
	} else {
		upstream, err := b.startUpstream(ctx)
		if err != nil {
			return nil, err
		}
		dynamic["services"] = object{"ok": object{"loadBalancer": object{"servers": []object{{"url": "http://" + upstream}}}}}
	}
	if limit := b.traefikLimit(p); limit != nil {
		router["middlewares"] = []string{"limit"}
		dynamic["middlewares"] = object{"limit": limit}
	}
	if s.limit != nil {
		static["experimental"] = object{"localPlugins": object{"pg_ratelimit": object{"moduleName": modulePath}}}
	}
	for name, content := range map[string]object{"static.yml": static, "dynamic.yml": {"http": dynamic}} {
		text, err := yaml.Marshal(content)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	// Traefik looks for local plugins below the folder that it runs in.
	sources := filepath.Join(b.dir, homeOf(s.name), "plugins-local", "src", filepath.FromSlash(modulePath))
	if err := os.MkdirAll(filepath.Dir(sources), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(b.root, sources); err != nil {
		return nil, err
	}
	if p.program, err = startProgram(b.dir, s.name, b.traefik, "--configFile="+filepath.Join(dir, "static.yml")); err != nil {
		return nil, err
	}
	return p, p.program.awaitOK(ctx, p.address)
}

// upstreamChild is the argument that asks for upstreamMain.
const upstreamChild = "child-upstream"

// startUpstream starts the upstream, once, and returns its address.
func (b *bench) startUpstream(ctx context.Context) (string, error) {
	if b.upstream != nil {
		return b.upstreamAddress, nil
	}
	address, err := freeAddress()
	if err != nil {
		return "", err
	}
	b.upstreamAddress = address
	if b.upstream, err = startProgram(b.dir, "upstream", b.self, upstreamChild, address); err != nil {
		return "", err
	}
	return address, b.upstream.awaitOK(ctx, address)
}

// upstreamMain answers ok on the address that it is given.
func upstreamMain(args []string) error {
	if len(args) != 1 {
		return errors.New("takes one argument")
	}
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	return (&http.Server{Addr: args[0], Handler: ok, ReadHeaderTimeout: startPatience}).ListenAndServe()
}

// traefikLimit is the middleware of a Traefik, nil for none.
func (b *bench) traefikLimit(p *proxy) object {
	s := p.spec
	switch {
	case s.builtin:
		limit := object{
			"average": 1000000, "period": "1h", "burst": 1000000, // ample
			"sourceCriterion": object{"requestHeaderName": keyHeader},
		}
		if s.redis {
			limit["redis"] = object{"endpoints": []string{b.redisAddress}}
		}
		return object{"rateLimit": limit}
	case s.limit != nil:
		return object{"plugin": object{"pg_ratelimit": object{
			"dsn": p.dsn, "prefix": zoneNames[0], "key": "{header." + keyHeader + "}",
			"algorithm": s.limit.algorithm, "limit": s.limit.limit, "timeout": decisionTimeout, "onError": "deny",
		}}}
	}
	return nil
}

// startRedis starts the Redis that Traefik's own limiter counts in. It keeps
// nothing on disk, which is the fastest that it can be.
func (b *bench) startRedis(ctx context.Context) error {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	host, port := splitAddress(address)
	b.progress("starting Redis")
	b.redisAddress = address
	b.redis, err = startProgram(b.dir, "redis", b.redisServer, "--bind", host, "--port", port, "--save", "", "--appendonly", "no")
	if err != nil {
		return err
	}
	return b.redis.awaitListener(ctx, address)
}
