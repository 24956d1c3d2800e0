package main

import (
	"strings"
	"testing"
)

// narrow wraps prose at 110 columns, the longest line that documents may have. It leaves a line of a table
// whole, and removes only the spaces that pad the cells.
func TestResultsAreWrappedOutsideTables(t *testing.T) {
	words := strings.Repeat("µs/request ", 30)
	got := narrow(words + "end.\n| a  | " + words + "|\n")
	lines := strings.Split(got, "\n")
	if want := "|a|" + strings.TrimSpace(words) + "|"; len(lines) != 6 || lines[4] != want {
		t.Errorf("narrow = %q, want four lines and %q", lines, want)
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
