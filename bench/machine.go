package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
)

// describeMachine returns a line that describes the machine and the programs of a run.
func (b *bench) describeMachine() string {
	programs := []string{"Go " + strings.TrimPrefix(runtime.Version(), "go")}
	if len(b.postgres) > 0 {
		programs = append(programs, "Postgres "+query(b.ctx, b.postgres[0].server.DSN("postgres"),
			"SHOW server_version"))
	}
	for _, m := range []struct{ program, module string }{
		{b.caddies["bench-caddy"], "github.com/caddyserver/caddy/v2"},
		{b.traefik, "github.com/traefik/traefik/v3"},
		{b.caddies["bench-caddy-peers"], "github.com/mholt/caddy-ratelimit"},
		{b.caddies["bench-caddy-peers"], "github.com/go-redis/redis_rate/v10"},
		{b.caddies["bench-caddy-peers"], "github.com/redis/go-redis/v9"},
	} {
		if m.program != "" {
			info := must(buildinfo.ReadFile(m.program))
			// In Traefik's program, the main module is Traefik.
			for _, d := range append(info.Deps, &info.Main) {
				if d.Path == m.module {
					programs = append(programs,
						strings.TrimPrefix(m.module, "github.com/")+" "+strings.TrimPrefix(d.Version, "v"))
				}
			}
		}
	}
	if b.redisServer != "" {
		out := must(exec.CommandContext(b.ctx, b.redisServer, "--version").Output())
		programs = append(programs, string(regexp.MustCompile(`Redis.*v=\S+`).Find(out)))
	}
	loadAverage := ""
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		loadAverage = fmt.Sprintf(" with a load average of %s in the last 15 minutes",
			strings.Fields(string(data))[2])
	}
	return fmt.Sprintf("%d cores%s%s. %s", runtime.NumCPU(), processorName(), loadAverage,
		strings.Join(programs, ", "))
}

// processorName returns " of " and the name of the processor, or "" if the system does not report one.
func processorName() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	if name := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindSubmatch(data); name != nil {
		return " of " + string(name[1])
	}
	return ""
}
