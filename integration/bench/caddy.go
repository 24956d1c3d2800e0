package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/template"

	"github.com/pgratelimit/pg-ratelimit/integration/internal/harness"
)

// caddyfile configures a Caddy that answers by itself, with or without a limit.
var caddyfile = template.Must(template.New("Caddyfile").Parse(`{
	admin {{.Admin}}
	persist_config off
	auto_https off
	log {
		level WARN
	}
}
http://{{.Address}} {
	bind 127.0.0.1
{{- define "limit"}}
		key {http.request.header.{{.Key}}}
		algorithm {{.Limit.Algorithm}}
		limit {{.Limit.Limit}}
		{{- if .Limit.Lease}}
		lease {{.Limit.Lease}}
		{{- end}}
		{{.Limit.Options}}
{{- end}}
{{- if .Limit}}
	pg_ratelimit {{if not .Limit.Policy}}api {{end}}{
		dsn "{{.DSN}}"
		timeout {{.Timeout}}
		on_error deny
		{{- if .Limit.Policy}}
		policy {
			api_key {http.request.header.{{.Key}}}
		}
		{{- else}}
		{{- template "limit" .}}
		{{- end}}
		{{- range .Limit.Zones}}
		zone {{.}} {
		{{- template "limit" $}}
		}
		{{- end}}
	}
{{- end}}
	respond "ok"
}
`))

// configureCaddy is the Caddyfile of p.
func configureCaddy(p *proxy) string {
	var text strings.Builder
	check(caddyfile.Execute(&text, map[string]any{
		"Address": p.address, "Admin": p.admin, "DSN": p.dsn, "Timeout": decisionTimeout, "Key": keyHeader, "Limit": p.spec.limit,
	}))
	return text.String()
}

// startCaddy starts p as a Caddy.
func (b *bench) startCaddy(p *proxy) *harness.Process {
	if b.caddy == "" {
		log.Print("building Caddy; the first time this takes some minutes")
		b.caddy = must(filepath.Abs(".cache/caddy"))
		check(harness.CompileCaddy(b.ctx, root, b.caddy))
	}
	return b.launch(p.spec.name, b.caddy, "run", "--config", b.file("caddyfile", configureCaddy(p)), "--adapter", "caddyfile")
}

// memStats are a Caddy's figures of memory, after a garbage collection.
func (b *bench) memStats(p *proxy) *runtime.MemStats {
	check(p.askAdmin(b.ctx, "/debug/pprof/heap?gc=1").Body.Close())
	response := p.askAdmin(b.ctx, "/debug/vars")
	defer response.Body.Close()
	var vars struct{ MemStats runtime.MemStats }
	check(json.NewDecoder(response.Body).Decode(&vars))
	return &vars.MemStats
}

// metric is the value of a Caddy's metric without labels.
func (b *bench) metric(p *proxy, name string) float64 {
	response := p.askAdmin(b.ctx, "/metrics")
	defer response.Body.Close()
	text := string(must(io.ReadAll(response.Body)))
	_, value, found := strings.Cut(text, "\n"+name+" ")
	if !found {
		check(errors.New("no metric " + name))
	}
	value, _, _ = strings.Cut(value, "\n")
	return must(strconv.ParseFloat(value, 64))
}
