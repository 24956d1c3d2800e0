package imports

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// maxWords bounds the rows of the table of words in CONTRIBUTING.md.
const maxWords = 25

var (
	tableOfWords = regexp.MustCompile(`(?s)\| word \| meaning \|.*?\n\n`)
	capitals     = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)
	italics      = regexp.MustCompile(`\*(\w+)\*`)
)

// Each word of the table is part of a name in the code, and no word of its column "instead of" is.
func TestCodeHasWordsOfTable(t *testing.T) {
	text := readFile(t, "CONTRIBUTING.md")
	lines := strings.Split(strings.TrimSpace(tableOfWords.FindString(text)), "\n")
	if len(lines) < 12 || len(lines)-2 > maxWords {
		t.Fatalf("the table of words has %d rows, want 10 to %d", len(lines)-2, maxWords)
	}
	names := wordsOfNames(t)
	for _, line := range lines[2:] {
		cells := strings.Split(line, "|")
		words := []string{strings.TrimSpace(cells[1])}
		for _, word := range italics.FindAllStringSubmatch(cells[2], -1) {
			words = append(words, word[1])
		}
		for _, word := range words {
			if !strings.Contains(names, " "+word) {
				t.Errorf("no name in the code has the word %q, want one", word)
			}
		}
		if other := strings.TrimSpace(cells[3]); other != "" && strings.Contains(names, " "+other+" ") {
			t.Errorf("a name in the code has %q, want %q", other, words[0])
		}
	}
}

// wordsOfNames returns the words of the names in Go code, except in tests, as in " lock timeout \n row id ".
func wordsOfNames(t *testing.T) string {
	t.Helper()
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				seen[name.Name] = true
			}
			return true
		})
	}
	var names strings.Builder
	for name := range seen {
		words := capitals.FindAllString(name, -1)
		names.WriteString(" " + strings.ToLower(strings.Join(words, " ")) + " \n")
	}
	return names.String()
}
