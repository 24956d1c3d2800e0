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
	for program, module := range map[string]string{b.caddy: "github.com/caddyserver/caddy/v2", b.traefik: "github.com/traefik/traefik/v3"} {
		if program != "" {
			for _, d := range must(buildinfo.ReadFile(program)).Deps {
				if d.Path == module {
					programs = append(programs, module+" "+d.Version)
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
Medians of %d rounds of %d s, with the lowest and the highest. A ratio is of two rows in the same round.`,
		runtime.NumCPU(), must(fs.CPUInfo())[0].ModelName, *must(fs.Meminfo()).MemTotal>>10, strings.Join(programs, ", "), b.rounds, b.seconds)
}
