package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// describeMachine says, in lines, what the figures were measured on.
func (b *bench) describeMachine(ctx context.Context) []string {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return string(text)
	}
	cpu := "CPU"
	if _, model, found := strings.Cut(field(read("/proc/cpuinfo"), "model name"), ":"); found {
		cpu = strings.Join(strings.Fields(model), " ")
	}
	machine := []string{fmt.Sprintf("%d cores of %s (%s)", runtime.NumCPU(), cpu, runtime.GOARCH)}
	if kilobytes, err := strconv.ParseFloat(strings.TrimSuffix(field(read("/proc/meminfo"), "MemTotal:"), " kB"), 64); err == nil {
		machine = append(machine, fmt.Sprintf("%.0f GB of memory", kilobytes/(1<<20)))
	}
	if system := strings.Trim(field(read("/etc/os-release"), "PRETTY_NAME="), `"`); system != "" {
		machine = append(machine, system)
	}
	if kernel := strings.TrimSpace(read("/proc/sys/kernel/osrelease")); kernel != "" {
		machine = append(machine, "Linux "+kernel)
	}

	postgres, err := b.postgres.describe(ctx)
	if err != nil {
		postgres = "Postgres"
	}
	programs := []string{"Go " + strings.TrimPrefix(runtime.Version(), "go"), postgres}
	if b.caddy != "" {
		programs = append(programs, "Caddy "+moduleVersion(b.caddy, "github.com/caddyserver/caddy/v2"))
	}
	if b.traefik != "" {
		programs = append(programs, "Traefik "+moduleVersion(b.traefik, "github.com/traefik/traefik/v3"))
	}
	if b.redisServer != "" {
		programs = append(programs, "Redis "+programVersion(ctx, b.redisServer, "--version"))
	}
	if b.wrk != "" {
		programs = append(programs, "wrk "+programVersion(ctx, b.wrk, "--version"))
	}
	answers := "Caddy answers by itself, Traefik has an upstream that says ok"
	if b.noUpstream {
		answers = "both proxies answer by themselves"
	}
	return []string{
		strings.Join(machine, ", "),
		strings.Join(programs, ", "),
		fmt.Sprintf("wrk with %d connections and %d threads, proxy and database share the cores; %s; medians of %d interleaved rounds of %d s, with the lowest and the highest",
			wrkConnections, wrkThreads, answers, b.rounds, b.seconds),
	}
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)+`)

// programVersion is the first version number that a program tells. wrk ends
// with a failure even so.
func programVersion(ctx context.Context, path, flag string) string {
	out, err := exec.CommandContext(ctx, path, flag).CombinedOutput()
	if version := versionPattern.Find(out); version != nil {
		return string(version)
	}
	return fmt.Sprint("of unknown version: ", err)
}
