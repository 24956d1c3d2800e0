package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// Environment variables that make TestNothingIsLeftBehind the program that
// another run of it looks at.
const (
	exitTest  = "PG_RATELIMIT_EXIT_TEST"       // "return" ends as a test ends, "wait" waits to be killed
	exitCaddy = "PG_RATELIMIT_EXIT_TEST_CADDY" // the path of Caddy
)

// TestNothingIsLeftBehind runs itself in another process, which starts a
// Postgres and a Caddy, and looks for them when that process is gone.
func TestNothingIsLeftBehind(t *testing.T) {
	if how := os.Getenv(exitTest); how != "" {
		runPrograms(t, how == "wait")
		return
	}
	binary := buildCaddy(t)
	for _, how := range []string{"return", "wait"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestNothingIsLeftBehind$", "-test.v")
			// A test that is killed leaves its temporary folder behind.
			cmd.Env = append(os.Environ(), exitTest+"="+how, exitCaddy+"="+binary, "TMPDIR="+t.TempDir())
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			said, pids := readPIDs(stdout)
			if how == "wait" {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			rest, readErr := io.ReadAll(stdout)
			err = cmd.Wait()
			if len(pids) < 8 || readErr != nil || (how == "return") != (err == nil) {
				t.Fatalf("the other process ended with %v (%v), with pids %v:\n%s%s%s", err, readErr, pids, said, rest, stderr.String())
			}
			await(t, fmt.Sprintf("processes %v to end", pids), func() bool {
				for _, pid := range pids {
					if alive(pid) {
						return false
					}
				}
				return true
			})
		})
	}
}

// alive reports whether a process runs. A process that has ended, and for which its parent
// has not waited yet, does not.
func alive(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

// readPIDs reads up to the line of process numbers.
func readPIDs(from io.Reader) (said string, pids []int) {
	var text []byte
	for buffer := make([]byte, 1); ; {
		if _, err := from.Read(buffer); err != nil {
			return string(text), nil
		}
		text = append(text, buffer[0])
		if buffer[0] != '\n' {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if list, ok := strings.CutPrefix(lines[len(lines)-1], "pids "); ok {
			for _, word := range strings.Fields(list) {
				pid, err := strconv.Atoi(word)
				if err != nil {
					return string(text), nil
				}
				pids = append(pids, pid)
			}
			return string(text), pids
		}
	}
}

// runPrograms starts what the other tests start, and prints the numbers of all
// of its processes.
func runPrograms(t *testing.T, wait bool) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	address := harness.FreeAddress(t)
	config := caddyfile(address, dsn, []caddyRoute{{"/", []string{exactly("exit", "limit 10 1m")}}})
	c := launchConfig(t, os.Getenv(exitCaddy), address, config)
	c.AwaitAddress(t, address)
	if answer := harness.Ask(t, harness.Get(c.url)); answer.Status != 200 {
		t.Fatalf("%d %s", answer.Status, answer.Body)
	}
	text, err := os.ReadFile(server.DataDir() + "/postmaster.pid")
	if err != nil {
		t.Fatal(err)
	}
	postmaster, _, _ := strings.Cut(string(text), "\n")
	pids := []string{strconv.Itoa(c.PID()), postmaster}
	for _, line := range queryLines(t, dsn, "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()") {
		pids = append(pids, strings.Trim(line, "()"))
	}
	fmt.Println("pids", strings.Join(pids, " "))
	if wait {
		// Much longer than it takes to be killed, and not for ever.
		time.Sleep(time.Minute)
	}
}
