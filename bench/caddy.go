package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// caddyfile configures a Caddy that answers by itself: its address, its admin endpoint,
// and its limit.
const caddyfile = `{
	admin %[2]s
	persist_config off
	auto_https off
	log {
		level WARN
	}
}
http://%[1]s {
	bind 127.0.0.1
	%[3]s
	respond "ok"
}
`

// configureCaddy is the Caddyfile of p.
func configureCaddy(p *proxy) string {
	return fmt.Sprintf(caddyfile, p.address, p.admin, p.directive())
}

// directive is the limit of p in a Caddyfile.
func (p *proxy) directive() string {
	l := p.spec.limit
	if l == nil {
		return ""
	}
	key := "{http.request.header." + keyHeader + "}"
	switch l.peer {
	case inProcess:
		return fmt.Sprintf("rate_limit {\nzone api {\nkey %s\nevents %d\nwindow %s\n}\n}", key, l.events(), l.window())
	case onRedis:
		return fmt.Sprintf("redis_rate %s %s %d %s", p.redis, key, l.events(), l.window())
	}
	store := fmt.Sprintf("dsn %q\ntimeout %s\non_error deny\n", p.dsn, decisionTimeout)
	if l.policy {
		return "pg_ratelimit {\n" + store + "policy {\napi_key " + key + "\n}\n}"
	}
	limit := fmt.Sprintf("key %s\nalgorithm %s\nlimit %s\n%s\n", key, cmp.Or(l.algorithm, "sliding_window"), l.limit, l.options)
	if l.lease != "" {
		limit += "lease " + l.lease + "\n"
	}
	text := "pg_ratelimit api {\n" + store + limit
	for _, zone := range l.zones {
		text += "zone " + zone + " {\n" + limit + "}\n"
	}
	return text + "}"
}

// startCaddy starts p as a Caddy.
func (b *bench) startCaddy(p *proxy) *harness.Process {
	return b.launch(p.spec.name, b.dir, b.buildCaddy(p.spec), "run", "--config", b.file("caddyfile", configureCaddy(p)), "--adapter", "caddyfile")
}

// buildCaddy returns the program of a Caddy: the one of `make build`, the one with the peers, or
// the one of the version before.
func (b *bench) buildCaddy(s *proxySpec) string {
	module, name := filepath.Join(root, "xcaddy"), "bench-caddy"
	switch {
	case s.before:
		module, name = filepath.Join(b.beforeDir, "xcaddy"), "bench-caddy-before"
	case s.limit != nil && !s.ours():
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

// askAdmin returns what a Caddy's admin endpoint answers.
func (b *bench) askAdmin(p *proxy, path string) []byte {
	response, err := http.DefaultClient.Do(harness.Get("http://" + p.admin + path).WithContext(b.ctx))
	check(err)
	defer response.Body.Close()
	return must(io.ReadAll(response.Body))
}

// memStats are a Caddy's figures of memory.
func (b *bench) memStats(p *proxy) *runtime.MemStats {
	var vars struct{ MemStats runtime.MemStats }
	check(json.Unmarshal(b.askAdmin(p, "/debug/vars"), &vars))
	return &vars.MemStats
}

// metric is the value of a Caddy's metric without labels.
func (b *bench) metric(p *proxy, name string) float64 {
	_, value, _ := strings.Cut(string(b.askAdmin(p, "/metrics")), "\n"+name+" ")
	value, _, _ = strings.Cut(value, "\n")
	return must(strconv.ParseFloat(value, 64)) // no metric is an error
}
