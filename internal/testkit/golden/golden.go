// Package golden compares texts with files of expected texts. The flag -update writes these files.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files that have the wrong text")

// Check fails the test unless a file has the text got. With -update, it writes the file.
func Check(t testing.TB, file, got string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if want := string(text); err == nil && want == got {
		return
	} else if *update {
		err = os.WriteFile(file, []byte(got), 0o644)
	} else if err == nil {
		n := 0
		for n < min(len(got), len(want)) && got[n] == want[n] {
			n++
		}
		line := strings.Count(got[:n], "\n")
		t.Errorf("%s differs from line %d on; if got is right, use -update: got\n%s\nwant\n%s", file, line+1,
			linesFrom(got, line), linesFrom(want, line))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// linesFrom returns ten lines of text, from the line with the index line on.
func linesFrom(text string, line int) string {
	lines := strings.SplitN(text, "\n", line+11)
	return strings.Join(lines[line:min(line+10, len(lines))], "\n")
}

// Replay compares a file with the text that replay returns for the text of the file.
func Replay(t testing.TB, file string, replay func(text string) string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	Check(t, file, replay(string(text)))
}

// ReplayAll calls Replay in a subtest for each file that matches a pattern.
func ReplayAll(t *testing.T, pattern string, replay func(t *testing.T, text string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files match %s, error %v, want some", len(files), pattern, err)
	}
	for _, file := range files {
		file, err := filepath.Abs(file) // replay may change the folder
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			Replay(t, file, func(text string) string { return replay(t, text) })
		})
	}
}

// CheckPart is Check for the lines of a page between two comments: one that names the command which, with
// -update, writes them, and "to here".
func CheckPart(t testing.TB, page, command, got string) {
	t.Helper()
	from, to := "<!-- `"+command+" -update` writes the lines from here -->\n", "<!-- to here -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), from)
	_, after, ends := strings.Cut(rest, to)
	if !found || !ends {
		t.Fatalf("%s lacks the lines %s and %s", page, from, to)
	}
	Check(t, page, before+from+got+to+after)
}
