package docs

import (
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
	for _, b := range blocksIn(t, "console", isOfGuide) {
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
				if lines, status := s.run(command); status != "0" {
					t.Fatalf("%s ends with status %s, want 0:\n%s", command, status, joinLines(lines))
				}
			}
		})
	}
}
