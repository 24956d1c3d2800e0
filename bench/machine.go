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
func (b *bench) describeMachine() []string {
	programs := []string{"Go " + strings.TrimPrefix(runtime.Version(), "go"), "Postgres " + b.postgres.version(b.ctx)}
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
	memory := must(must(procfs.NewDefaultFS()).Meminfo())
	return []string{
		fmt.Sprintf("%d cores of %s, %.0f GB of memory.", runtime.NumCPU(), must(must(procfs.NewDefaultFS()).CPUInfo())[0].ModelName, float64(*memory.MemTotal)/(1<<20)),
		strings.Join(programs, ", ") + ".",
		"Load, proxy and database share the cores. 64 connections if the row says no other number. Caddy answers by itself, Traefik has an upstream.",
		fmt.Sprintf("Medians of %d rounds of %d s, with the lowest and the highest. A ratio is of two rows in the same round.", b.rounds, b.seconds),
	}
}
