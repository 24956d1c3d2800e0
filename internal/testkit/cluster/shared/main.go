// Command shared starts a Postgres server and runs a command. The tests in all processes of the command share
// the server:
//
//	go run ./internal/testkit/cluster/shared -- go test ./...
//
// The server ends with the command. If PG_RATELIMIT_TEST_DSN is set, the command uses that server.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

func main() {
	command := os.Args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		fmt.Fprintln(os.Stderr, "usage: shared -- command ...")
		os.Exit(2)
	}
	status, err := run(command)
	if err != nil {
		fmt.Fprintln(os.Stderr, "shared:", err)
		status = 1
	}
	os.Exit(status)
}

// run runs the command, and returns its exit status.
func run(command []string) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv(cluster.TestDSN) == "" {
		server, err := cluster.Shared(ctx)
		if err != nil {
			return 0, err
		}
		defer func() { _ = server.Stop() }()
		if err := os.Setenv(cluster.TestDSN, server.DSN("postgres")); err != nil {
			return 0, err
		}
	}
	// Ctrl-C reaches the command from the terminal. A signal to this process alone would not, so Cancel
	// forwards it.
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return max(1, ended.ExitCode()), nil
	}
	return 0, err
}
