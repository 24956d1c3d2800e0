package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// isOfPolicy reports whether a command is one of those that TestPolicyCommandsOfPagesSucceed runs.
func isOfPolicy(command string) bool {
	if command == "caddy pg-ratelimit page" {
		return false // it does not end
	}
	return strings.HasPrefix(command, "caddy pg-ratelimit ") ||
		strings.HasPrefix(command, `psql "$DATABASE_URL" -c `)
}

// The commands of a page on the policy succeed, one after the other on a fresh database, with the Caddy of
// `make build`.
func TestPolicyCommandsOfPagesSucceed(t *testing.T) {
	pages := map[string][]string{}
	for _, b := range blocksIn(t, "console") {
		if isOfGuide(b) {
			continue
		}
		for line := range strings.Lines(b.text) {
			if command := strings.TrimPrefix(strings.TrimSpace(line), "$ "); isOfPolicy(command) {
				pages[b.document] = append(pages[b.document], command)
			}
		}
	}
	if len(pages["docs/policy.md"]) == 0 {
		t.Fatal("docs/policy.md has no commands")
	}
	for page, commands := range pages {
		t.Run(page, func(t *testing.T) {
			s := newShell(t, cluster.Open(t))
			for _, command := range commands {
				if lines, status := s.run(t, command); status != "0" {
					t.Fatalf("%s ends with status %s, want 0:\n%s", command, status, joinLines(lines))
				}
			}
		})
	}
}

var codeWords = regexp.MustCompile("`([a-z]+(?: [a-z]+)?)")

// The table of commands in docs/policy.md has each command of the program.
func TestPolicyPageListsAllCommands(t *testing.T) {
	text := readFile(t, filepath.Join(root, "docs", "policy.md"))
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*`) \\|").FindAllStringSubmatch(text, -1) {
		for _, command := range codeWords.FindAllStringSubmatch(row[1], -1) {
			listed = append(listed, command[1])
		}
	}
	n := 0
	check := func(command string) {
		if n++; !slices.Contains(listed, command) {
			t.Errorf("the table of commands lacks %q", command)
		}
	}
	for _, name := range subcommands(t) {
		below := subcommands(t, name)
		for _, subcommand := range below {
			check(name + " " + subcommand)
		}
		if below == nil {
			check(name)
		}
	}
	if n < 20 {
		t.Errorf("the program has %d commands, want at least 20", n)
	}
}

// subcommands returns the commands below a command, by its --help, or nil if there are none.
func subcommands(t *testing.T, command ...string) []string {
	t.Helper()
	help, _, err := caddy(t, append(append([]string{"pg-ratelimit"}, command...), "--help")...)
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(help, "Available Commands:\n")
	if !found {
		return nil
	}
	var names []string
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			break
		}
		names = append(names, fields[0])
	}
	return names
}
