package command_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/admin/command"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// source matches a row of the table of views and functions that commands print.
var source = regexp.MustCompile("(?m)^\\| `(.*)` \\| `(rate_limit_.*)` \\|$")

// rowOf returns the row of a command.
func rowOf(cmd *cobra.Command) string {
	var flags []string
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			flags = append(flags, "`--"+f.Name+"`")
		}
	})
	_, use, _ := strings.Cut(cmd.CommandPath(), " ")
	return "| `" + use + "` | " + strings.ReplaceAll(cmd.Short, "|", `\|`) + " | " +
		strings.Join(flags, " ") + " |\n"
}

// The page of commands has each command of the help, with its flags.
func TestPageListsEachCommand(t *testing.T) {
	tool := &cobra.Command{Use: "pg-ratelimit"}
	command.Build(tool, nil)
	rows := ""
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if !isGroup(cmd) {
			rows += rowOf(cmd)
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(tool)
	conn := cluster.Connect(t, cluster.Open(t, schema.File, "SELECT rate_limit_user('ann', tier => 'x') "+
		"FROM rate_limit_tier('x')"))
	golden.CheckPage(t, "../../docs/generated/commands.md", "testdata/reference.md",
		map[string]string{"COMMANDS": rows})
	page, err := os.ReadFile("../../docs/generated/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := source.FindAllStringSubmatch(string(page), -1)
	if len(sources) < 20 {
		t.Errorf("the page has %d sources, want at least 20", len(sources))
	}
	for _, s := range sources {
		if _, err := conn.Exec(t.Context(), "SELECT * FROM "+s[2]); err != nil {
			t.Errorf("the source of %s: SELECT * FROM %s: %v", s[1], s[2], err)
		}
		words := strings.Fields(s[1])
		if cmd, rest, err := tool.Find(words); err != nil || isGroup(cmd) {
			t.Errorf("no command %s, which has the source %s: it leaves %q", s[1], s[2], rest)
		}
	}
}
