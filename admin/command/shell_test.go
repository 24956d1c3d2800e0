package command_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/admin/command"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// shell runs the commands on a database.
type shell struct {
	t     testing.TB
	dsn   string
	stdin string
}

// newShell creates a database, and executes sql in it.
func newShell(t testing.TB, sql ...string) *shell {
	t.Helper()
	t.Setenv("DATABASE_URL", "")
	t.Chdir(t.TempDir()) // no Caddyfile
	return &shell{t: t, dsn: cluster.Open(t, sql...)}
}

// output is the output of a command, and its error.
type output struct {
	stdout, stderr string
	err            error
}

// run runs `caddy pg-ratelimit …` on the database.
func (s *shell) run(args ...string) output {
	s.t.Helper()
	return s.caddy(append([]string{"pg-ratelimit", "--dsn", s.dsn}, args...)...)
}

// caddy runs `caddy …` in this process. runProgram runs Caddy in another process.
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
	cmd := &cobra.Command{Use: "pg-ratelimit <command>"}
	command.Build(cmd, func(configured string) (string, error) { return configured, nil })
	root := &cobra.Command{Use: "caddy", SilenceUsage: true}
	root.AddCommand(cmd)
	root.SetArgs(args)
	root.SetIn(strings.NewReader(s.stdin))
	return root
}

// mustRun runs a command that must succeed, and returns its standard output.
func (s *shell) mustRun(args ...string) string {
	s.t.Helper()
	out := s.run(args...)
	if out.err != nil {
		s.t.Fatalf("%q: error %v, want none", args, out.err)
	}
	return out.stdout
}

// sql executes SQL as the owner of the database.
func (s *shell) sql(sql string) {
	s.t.Helper()
	cluster.Execute(s.t, s.dsn, sql)
}

// allRows returns all rows of all tables in the database as text.
func (s *shell) allRows() string {
	s.t.Helper()
	ctx := context.Background()
	conn := cluster.Connect(s.t, s.dsn)
	defer conn.Close(ctx)
	result, err := conn.Query(ctx,
		"SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
	if err != nil {
		s.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil || len(tables) < 11 {
		s.t.Fatalf("the tables are %q, error %v; want 11 or more", tables, err)
	}
	var dump strings.Builder
	for _, table := range tables {
		const sql = "SELECT coalesce(string_agg(to_jsonb(t)::text, E'\n'), '') FROM "
		var rows string
		if err := conn.QueryRow(ctx, sql+table+" t").Scan(&rows); err != nil {
			s.t.Fatal(err)
		}
		dump.WriteString(table + ": " + rows + "\n")
	}
	return dump.String()
}
