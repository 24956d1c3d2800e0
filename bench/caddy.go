package main

import (
	"cmp"
	"fmt"
	"log"
	"path/filepath"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// caddyfile is a Caddyfile with three arguments: the address, the directive of the limit, and the response.
const caddyfile = `{
	admin off
	persist_config off
	auto_https off
	log {
		level WARN
	}
}
http://%[1]s {
	bind 127.0.0.1
	%[2]s
	%[3]s
}
`

// configureCaddy returns the Caddyfile of p.
func configureCaddy(p *proxy) string {
	response := "respond ok"
	if p.row.load.prompts { // nobody runs a model in Caddy
		response = "reverse_proxy " + strings.TrimPrefix(p.upstream, "http://")
	}
	return fmt.Sprintf(caddyfile, p.address, p.directive(), response)
}

// directive returns the Caddyfile directive of p's limit, or "" without a limit.
func (p *proxy) directive() string {
	l := p.row.limit
	if l == nil {
		return ""
	}
	key := "{http.request.header." + keyHeader + "}"
	switch l.peer {
	case inProcess:
		return fmt.Sprintf("rate_limit {\nzone api {\nkey %s\nevents %d\nwindow %s\n}\n}", key,
			l.events(), l.window())
	case onRedis:
		directive := fmt.Sprintf("redis_rate %s %d %s %s", p.redis, l.events(), l.window(), key)
		for _, zone := range l.zones {
			directive += " " + zone + ":" + key
		}
		return directive
	}
	store := fmt.Sprintf("dsn %q\ntimeout %s\non_error deny\n", p.dsn, decisionTimeout)
	if l.policy {
		return "pg_ratelimit {\n" + store + "policy {\napi_key " + key + "\n}\n}"
	}
	limit := fmt.Sprintf("key %s\nalgorithm %s\nlimit %s\n%s\n", key, cmp.Or(l.algorithm, "sliding_window"),
		l.limit, l.options)
	if l.unit != "" {
		limit += "unit " + l.unit + "\n"
	}
	if l.lease != "" {
		limit += "lease " + l.lease + "\n"
	}
	directive := "pg_ratelimit api {\n" + store + limit
	for _, zone := range l.zones {
		directive += "zone " + zone + " {\n" + limit + "}\n"
	}
	return directive + "}"
}

// startCaddy starts p as a Caddy.
func (b *bench) startCaddy(p *proxy) *harness.Process {
	return b.launch(p.row.name, b.dir, b.buildCaddy(p.row), "run", "--config",
		b.writeTemp("caddyfile", configureCaddy(p)), "--adapter", "caddyfile")
}

// buildCaddy builds the Caddy of a row on first use, and returns its path. It is the Caddy of `make build`,
// the Caddy with the peers, or the Caddy of the base version.
func (b *bench) buildCaddy(r *row) string {
	module, name := filepath.Join(root, "xcaddy"), "bench-caddy"
	switch {
	case r.ofBaseVersion:
		module, name = filepath.Join(b.baseDir, "xcaddy"), "bench-caddy-before"
	case r.limit != nil && !r.isOwnLimit():
		module, name = "caddy", "bench-caddy-peers"
	}
	if b.caddies[name] == "" {
		log.Printf("building %s; the first time this takes some minutes", name)
		out := must(filepath.Abs(filepath.Join(root, ".cache", name)))
		check(harness.CompileCaddy(b.ctx, module, out))
		b.caddies[name] = out
	}
	return b.caddies[name]
}
