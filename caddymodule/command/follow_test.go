package command_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// audit -f prints the rows that are there, and new ones in the same columns, until Ctrl-C.
func TestTheAuditLogIsFollowed(t *testing.T) {
	s := newShell(t)
	s.must("migrate")
	s.sql("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date + i) FROM generate_series(-1, 1) AS i")
	const insert = "INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node, path) VALUES (now(), 1, 1, 'limited', 'web', 'edge', "
	s.sql(insert + "'/first')")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"table", "json"} {
		args := []string{"pg-ratelimit", "--dsn", s.dsn, "audit", "-f", "--prefix", "web", "-n", "1"}
		if format == "json" {
			args = append(args, "--json")
		}
		cmd := exec.Command(self, args...)
		cmd.Env = append(os.Environ(), asCaddy+"=1")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		lines := bufio.NewScanner(stdout)
		next := func() string {
			t.Helper()
			if !lines.Scan() {
				t.Fatalf("%s: it ended: %s", format, stderr.String())
			}
			if format == "json" && !json.Valid(lines.Bytes()) {
				t.Errorf("%q is not JSON", lines.Text())
			}
			return lines.Text()
		}
		column := 0
		if format == "table" {
			column = strings.Index(next(), "REQUEST")
		}
		_ = next()
		s.sql(insert + "'/new')")
		if line := next(); !strings.Contains(line, "/new") || format == "table" && strings.Index(line, "/new") != column {
			t.Errorf("%s: the new row is %q", format, line)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if lines.Scan() {
			t.Errorf("%s: one more line: %q", format, lines.Text())
		}
		if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
			t.Errorf("%s: it ended with %v, %q", format, err, stderr.String())
		}
		stuck.Stop()
	}
	s.fails([]string{"--follow and --until: only one of these flags may be given"}, "audit", "-f", "--until", "1h")
}
