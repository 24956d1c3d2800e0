package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// run runs the program in this process, and returns its output and its error.
func run(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// The program makes the tables and sets a rule, with a DSN from a file or the environment. Its help and its
// errors name the program, not Caddy.
func TestTheProgramManagesLimitsWithoutCaddy(t *testing.T) {
	dsn := cluster.Open(t)
	t.Setenv("LIMITS", dsn)
	file := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte(dsn+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"rules list --dsn {env.LIMITS}", "make them with: pg-ratelimit migrate"},
		{"migrate --dsn {env.LIMITS}", "created"},
		{"rules set free per_hour=7 --dsn {file." + file + "}", "free"},
		{"rules delete fre --dsn {env.LIMITS}", "must be listed by: pg-ratelimit rules list"},
		{"rules list --dsn {file.nowhere}", `dsn: "{file.nowhere}": must be a file with text`},
		{"rules list --dsn {env.NOT_SET_ANYWHERE}", `dsn: "{env.NOT_SET_ANYWHERE}": must be the name of`},
		{"rules set --help", "  pg-ratelimit rules set free "},
	} {
		got, err := run(strings.Fields(c.args)...)
		if !strings.Contains(got, c.want) || strings.Contains(got, "caddy") {
			t.Errorf("pg-ratelimit %s: %v\n%s\nwant %q, and no caddy", c.args, err, got, c.want)
		}
	}
}
