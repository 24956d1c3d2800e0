package main

import (
	"strings"
	"testing"
)

// narrow wraps prose at 110 columns, as the test of Markdown requires, and does not wrap tables.
func TestResultsAreWrappedOutsideTables(t *testing.T) {
	words := strings.Repeat("µs/request ", 30)
	got := narrow(words + "end.\n| a  | " + words + "|\n")
	lines := strings.Split(got, "\n")
	if want := strings.TrimSpace(words); len(lines) != 6 || lines[4] != "|a|"+want+"|" {
		t.Errorf("got %q, want four lines, and a table in one", lines)
	}
	for _, line := range lines[:4] {
		if n := len([]rune(line)); n > 110 {
			t.Errorf("%q has %d columns, want at most 110", line, n)
		}
	}
	if got, want := strings.Join(lines[:4], " "), words+"end."; got != want {
		t.Errorf("narrow changed the words to %q, want %q", got, want)
	}
}
