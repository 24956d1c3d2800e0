package main

import (
	"debug/buildinfo"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strings"

	"github.com/prometheus/procfs"
)

// describeMachine says in some lines what the figures were measured on.
func (b *bench) describeMachine() string {
	programs := []string{"Go " + strings.TrimPrefix(runtime.Version(), "go"), "Postgres " + query(b.ctx, b.postgres.server.DSN("postgres"), "SHOW server_version")}
	for _, m := range []struct{ program, module string }{
		{b.caddies["bench-caddy"], "github.com/caddyserver/caddy/v2"},
		{b.traefik, "github.com/traefik/traefik/v3"},
		{b.caddies["bench-caddy-peers"], "github.com/mholt/caddy-ratelimit"},
		{b.caddies["bench-caddy-peers"], "github.com/go-redis/redis_rate/v10"},
		{b.caddies["bench-caddy-peers"], "github.com/redis/go-redis/v9"},
	} {
		if m.program != "" {
			for _, d := range must(buildinfo.ReadFile(m.program)).Deps {
				if d.Path == m.module {
					programs = append(programs, strings.TrimPrefix(m.module, "github.com/")+" "+strings.TrimPrefix(d.Version, "v"))
				}
			}
		}
	}
	for _, program := range []string{b.wrk, b.redisServer} {
		if program != "" {
			out, _ := exec.CommandContext(b.ctx, program, "--version").CombinedOutput() // wrk prints its version and fails
			programs = append(programs, string(regexp.MustCompile(`wrk \S+|Redis.*v=\S+`).Find(out)))
		}
	}
	fs := must(procfs.NewDefaultFS())
	return fmt.Sprintf(`%d cores of %s, %d MB of memory. %s.
Load, proxy and database share the cores. 64 connections if the row says no other number. Caddy answers by itself, Traefik has an upstream.
Medians of %d rounds of %d s, with the lowest and the highest, between which the true median is with a probability of %.0f %%. A ratio is of two rows in the same round.`,
		runtime.NumCPU(), must(fs.CPUInfo())[0].ModelName, *must(fs.Meminfo()).MemTotal>>10, strings.Join(programs, ", "), b.rounds, b.seconds, 100*confidence(b.rounds))
}
