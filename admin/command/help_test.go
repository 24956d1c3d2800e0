package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/admin/command"
)

// usedInGo has the commands and flags that Go tests use, because a transcript cannot: they do not end, need
// Caddy's own process, or print too much.
const usedInGo = "archive --drop, audit --follow, migrate --print, notices deliver --follow, " +
	"notices deliver --format, notices deliver --to, page --host, page --insecure, page --listen"

// usedByTests returns the commands that transcripts and Go tests run, and their flags.
func usedByTests(t *testing.T, tool *cobra.Command) map[string]bool {
	used := map[string]bool{}
	for _, pattern := range []string{"testdata/*.txt", "*_test.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, error %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				for pair := range strings.SplitSeq(usedInGo, ", ") {
					i := strings.LastIndex(pair, " ")
					name, flag := pair[:i], pair[i+1:]
					if strings.Contains(line, `"`+strings.ReplaceAll(name, " ", `", "`)+`"`) &&
						strings.Contains(line, `"`+flag+`"`) {
						used["pg-ratelimit "+name], used["pg-ratelimit "+pair] = true, true
					}
				}
				shown, isCommand := strings.CutPrefix(strings.TrimSpace(line), "$ ")
				if !isCommand {
					continue
				}
				cmd, args, err := tool.Find(splitWords(t, shown))
				if err != nil {
					continue // a transcript of an error
				}
				used[cmd.CommandPath()] = true
				for _, arg := range args {
					name, _, _ := strings.Cut(arg, "=")
					used[cmd.CommandPath()+" "+name] = true
				}
			}
		}
	}
	return used
}

// isGroup reports whether a command is only a group of others. One that also runs by itself shows its flags.
func isGroup(cmd *cobra.Command) bool { return cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ") }

// inUse matches a flag with a number in the first line of a command's help.
var inUse = regexp.MustCompile(`(-[-a-z]+) (\d[^]| ]*)`)

// Each command of the help, and each of its flags, is used by a test. A first line that shows a number for a
// flag with a default shows that default.
func TestHelpIsThatOfTestedCommands(t *testing.T) {
	tool := &cobra.Command{Use: "pg-ratelimit"}
	command.Build(tool, nil)
	used := usedByTests(t, tool)
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			visit(c)
		}
		if isGroup(cmd) {
			return
		}
		if path := cmd.CommandPath(); !used[path] {
			t.Errorf("no test runs %s", path)
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			path := cmd.CommandPath()
			if !used[path+" --"+f.Name] && (f.Shorthand == "" || !used[path+" -"+f.Shorthand]) {
				t.Errorf("no test uses --%s of %s: %s", f.Name, path, f.Usage)
			}
		})
		for _, shown := range inUse.FindAllStringSubmatch(cmd.Use, -1) {
			f := cmd.Flags().Lookup(strings.TrimLeft(shown[1], "-"))
			if !strings.HasPrefix(shown[1], "--") {
				f = cmd.Flags().ShorthandLookup(shown[1][1:])
			}
			if f == nil || f.DefValue != "" && f.DefValue != shown[2] {
				t.Errorf("%s: the help shows %s, want a flag with its default", cmd.CommandPath(), shown[0])
			}
		}
	}
	visit(tool)
}
