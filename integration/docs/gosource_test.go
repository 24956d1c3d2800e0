package docs

import (
	"path/filepath"
	"strings"
	"testing"
)

// Each Go block is a copy of lines inside a function of gosnippets. The tests of gosnippets run these
// functions.
func TestGoSnippetsAreCompiled(t *testing.T) {
	files, err := filepath.Glob("gosnippets/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in gosnippets: %v", len(files), err)
	}
	var source strings.Builder
	for _, file := range files {
		text := readFile(t, file)
		source.WriteString(text)
	}
	for _, b := range blocksIn(t, "go") {
		var indented strings.Builder
		for line := range strings.Lines(b.text) {
			if line != "\n" {
				indented.WriteByte('\t')
			}
			indented.WriteString(line)
		}
		if !strings.Contains(source.String(), "\n"+indented.String()) {
			t.Errorf("%s: no function of gosnippets contains\n%s", b, b.text)
		}
	}
}
