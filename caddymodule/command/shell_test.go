package command_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/caddymodule/command"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// shell runs the commands on a database.
type shell struct {
	t     testing.TB
	dsn   string
	stdin string
}

// newShell makes a database in which the SQL has run.
func newShell(t testing.TB, sql ...string) *shell {
	t.Helper()
	t.Setenv("DATABASE_URL", "")
	t.Chdir(t.TempDir()) // no Caddyfile
	return &shell{t: t, dsn: cluster.Open(t, sql...)}
}

// output has the texts that a command printed, and its error.
type output struct {
	stdout, stderr string
	err            error
}

// run runs `caddy pg-ratelimit …` on the database.
func (s *shell) run(args ...string) output {
	s.t.Helper()
	return s.caddy(append([]string{"pg-ratelimit", "--dsn", s.dsn}, args...)...)
}

// caddy runs `caddy …` in this process, as Caddy makes its commands. See program_test.go for
// the program itself.
func (s *shell) caddy(args ...string) output {
	s.t.Helper()
	root := s.root(args...)
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	err := root.Execute()
	return output{stdout.String(), stderr.String(), err}
}

// root returns the command `caddy` with args.
func (s *shell) root(args ...string) *cobra.Command {
	registered := command.New(func(configured string) (string, string, error) {
		return configured, configured,
			nil
	})
	cmd := &cobra.Command{Use: registered.Name + " " + registered.Usage, Short: registered.Short,
		Long: registered.Long}
	registered.CobraFunc(cmd)
	root := &cobra.Command{Use: "caddy", SilenceUsage: true}
	root.AddCommand(cmd)
	root.SetArgs(args)
	root.SetIn(strings.NewReader(s.stdin))
	return root
}

// must runs a command that must succeed, and returns its standard output.
func (s *shell) must(args ...string) string {
	s.t.Helper()
	out := s.run(args...)
	if out.err != nil {
		s.t.Fatalf("%q: %v, want no error", args, out.err)
	}
	return out.stdout
}

// fails runs a command that must fail with all of wants in its error.
func (s *shell) fails(wants []string, args ...string) {
	s.t.Helper()
	out := s.run(args...)
	if out.err == nil {
		s.t.Fatalf("%q: no error, want %q; it printed\n%s", args, wants, out.stdout)
	}
	for _, want := range wants {
		if !strings.Contains(out.err.Error(), want) {
			s.t.Errorf("%q: %q does not contain %q", args, out.err, want)
		}
	}
}

// sql executes SQL as the owner of the database.
func (s *shell) sql(sql string) {
	s.t.Helper()
	cluster.Execute(s.t, s.dsn, sql)
}

// one returns the value of a query with one row and one column.
func one[T any](s *shell, sql string, args ...any) T {
	s.t.Helper()
	conn := cluster.Connect(s.t, s.dsn)
	defer conn.Close(context.Background())
	var value T
	if err := conn.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		s.t.Fatalf("%s: %v, want a value", sql, err)
	}
	return value
}
