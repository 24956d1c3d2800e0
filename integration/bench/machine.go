package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// describeMachine says in some lines what the figures were measured on.
func (b *bench) describeMachine() []string {
	programs := "Go " + strings.TrimPrefix(runtime.Version(), "go")
	for _, p := range []struct {
		name, program, pattern string
		command                []string
	}{
		{"Caddy", b.caddy, `/caddy/v2\s+v(\S+)`, []string{"go", "version", "-m", b.caddy}},
		{"Traefik", b.traefik, `/traefik/v3\s+v(\S+)`, []string{"go", "version", "-m", b.traefik}},
		{"Redis", b.redisServer, `v=(\S+)`, []string{b.redisServer, "--version"}},
		{"wrk", b.wrk, `wrk (?:debian/)?(\d[\d.]*)`, []string{b.wrk, "--version"}},
	} {
		if p.program != "" {
			out, _ := exec.CommandContext(b.ctx, p.command[0], p.command[1:]...).CombinedOutput() // wrk prints its version and fails
			programs += ", " + p.name + " " + find(p.pattern, out)
		}
	}
	read := func(file string) []byte { text, _ := os.ReadFile(file); return text }
	kilobytes, _ := strconv.ParseFloat(find(`MemTotal: *(\d+)`, read("/proc/meminfo")), 64)
	return []string{
		fmt.Sprintf("%d cores of %s, %.0f GB of memory, %s, Linux %s.", runtime.NumCPU(), find(`model name\s*: (.*)`, read("/proc/cpuinfo")),
			kilobytes/(1<<20), find(`PRETTY_NAME="(.*)"`, read("/etc/os-release")), find(`(.*)`, read("/proc/sys/kernel/osrelease"))),
		programs + ".",
		b.postgres.describe(b.ctx) + ".",
		fmt.Sprintf("wrk with %d connections and %d threads. Load, proxy and database share the cores. Caddy answers by itself, Traefik has an upstream.", connections, wrkThreads),
		fmt.Sprintf("Medians of %d interleaved rounds of %d s, with the lowest and the highest.", b.rounds, b.seconds),
	}
}

// find is what the group of the pattern matches first, or "?".
func find(pattern string, text []byte) string {
	if found := regexp.MustCompile(pattern).FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return "?"
}
