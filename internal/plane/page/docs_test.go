package page

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The documentation names each question with its method and its fields.
func TestTheDocumentationNamesTheFieldsOfEachQuestion(t *testing.T) {
	text, err := os.ReadFile("../../../docs/page.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "|question|method|fields|\n|---|---|---|\n")
	documented := map[string]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 {
			break
		}
		cells = cells[1:4]
		for name := range strings.SplitSeq(cells[0], ", ") {
			documented[strings.Trim(name, "`")] = cells[1] + " " + strings.ReplaceAll(cells[2], "`", "")
		}
	}
	for name, q := range questions {
		fields := slices.DeleteFunc(slices.Clone(q.fields), func(name string) bool { return name == "by" || name == "confirm" })
		if want := q.method + " " + strings.Join(fields, ", "); documented[name] != want {
			t.Errorf("docs/page.md has %q for %s, want %q", documented[name], name, want)
		}
	}
	if len(documented) != len(questions) {
		t.Errorf("docs/page.md has %d questions, want %d", len(documented), len(questions))
	}
}
