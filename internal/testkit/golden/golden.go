// Package golden compares texts with files of expected texts. The flag -update writes these files.
package golden

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files that have the wrong text")

// Check fails the test unless a file has the text got. With -update, it writes the file, and fails with what
// changed, so that somebody reads that. Generated code, which follows from other files, fails no test then.
func Check(t testing.TB, file, got string) {
	t.Helper()
	if *update && os.Getenv("CI") != "" {
		t.Fatal("-update: CI is set, so nobody would read what changes: run the test on your machine")
	}
	text, err := os.ReadFile(file)
	if err == nil && string(text) == got {
		return
	}
	seen, changes := firstChange(string(text), got), difference(file, got)
	advice := "if that is right, use -update"
	if *update {
		advice = "the file is written, so read what changed, and run the test again"
		err = os.WriteFile(file, []byte(got), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !*update || !strings.Contains(got, "// Code generated ") {
		t.Errorf("%s, %s: %s\n%s", file, seen, advice, changes)
	}
}

// firstChange returns what a user sees instead of the text want, in one line. In a transcript, that follows
// the command before it.
func firstChange(want, got string) string {
	wants, gots := strings.Split(want, "\n"), strings.Split(got, "\n")
	n, command := 0, ""
	for n < min(len(wants), len(gots))-1 && gots[n] == wants[n] {
		if strings.HasPrefix(gots[n], "$ ") || strings.HasSuffix(gots[n], ";") {
			command = fmt.Sprintf(" after %q", gots[n])
		}
		n++
	}
	return fmt.Sprintf("line %d: a user sees %.300q instead of %.300q%s", n+1, gots[n], wants[n], command)
}

// difference returns what diff prints about a file and a text.
func difference(file, text string) string {
	cmd := exec.Command("diff", "-u", file, "-")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if _, changes, found := strings.Cut(string(out), "\n@@ "); found {
		return changes[:min(len(changes), 20_000)]
	}
	return fmt.Sprint(string(out), err)
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

// ReplayLines is ReplayAll for files of lines with a kind and a text. The result of each is in the next line,
// after "= ". A line that begins with a tab continues the one before. Comments have no result.
func ReplayLines(t *testing.T, pattern string, result func(t *testing.T, kind, text string) string) {
	t.Helper()
	ReplayAll(t, pattern, func(t *testing.T, text string) string {
		var out []string
		for line := range strings.SplitSeq(strings.ReplaceAll(text, "\n\t", "\v"), "\n") {
			kind, text, _ := strings.Cut(line, " ")
			if kind == "=" {
				continue
			}
			out = append(out, strings.ReplaceAll(line, "\v", "\n\t"))
			if kind != "" && kind != "#" {
				shown := strconv.Quote(result(t, kind, strings.ReplaceAll(text, "\v", "\n")))
				shown = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(shown[1 : len(shown)-1])
				out = append(out, strings.TrimRight("= "+shown, " "))
			}
		}
		return strings.Join(out, "\n")
	})
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

// CheckPage is Check for a page that follows from a template: a file with names of tables, each in a line of
// its own, in place of their rows.
func CheckPage(t testing.TB, page, template string, tables map[string]string) {
	t.Helper()
	text, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	for name, rows := range tables {
		before, after, found := strings.Cut(got, "\n"+name+"\n")
		if !found {
			t.Fatalf("%s lacks the line %s", template, name)
		}
		got = before + "\n" + rows + after
	}
	Check(t, page, got)
}
