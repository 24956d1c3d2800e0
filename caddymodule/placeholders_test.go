package caddymodule_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

var (
	placeholderRow = regexp.MustCompile("(?m)^// `\\{(http\\.pg_ratelimit\\.\\w+)\\}` \\| (.*)$")
	reasonRow      = regexp.MustCompile(`(?m)^\t\w+ +Reason = "(\w+)" +// (.*)$`)
)

// rowsOf returns a row of a table for each match of a pattern in files.
func rowsOf(t *testing.T, pattern *regexp.Regexp, paths ...string) (rows string) {
	t.Helper()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range pattern.FindAllStringSubmatch(string(text), -1) {
			rows += "| `" + row[1] + "` | " + row[2] + " |\n"
		}
	}
	return rows
}

// The page of placeholders has those of the comments of Caddy's modules, and the reasons of the policy.
func TestPageListsPlaceholdersAndReasons(t *testing.T) {
	placeholders := rowsOf(t, placeholderRow, "handler.go", "policy.go")
	reasons := rowsOf(t, reasonRow, "../internal/plane/policy/verdict.go")
	if n, m := strings.Count(placeholders, "\n"), strings.Count(reasons, "\n"); n < 14 || m < 20 {
		t.Errorf("%d placeholders and %d reasons, want at least 14 and 20", n, m)
	}
	placeholders = strings.NewReplacer(
		"(docs/operating.md#outcomes)", "([outcomes](../operating.md#outcomes))",
		"(docs/generated/placeholders.md#reasons)", "([reasons](#reasons))").Replace(placeholders)
	golden.CheckPage(t, "../docs/generated/placeholders.md", "testdata/placeholders.md",
		map[string]string{"PLACEHOLDERS": placeholders, "REASONS": reasons})
}
