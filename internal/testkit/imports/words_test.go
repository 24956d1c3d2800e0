package imports

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

var (
	tableOfWords = regexp.MustCompile(`(?s)\| word \| meaning \|.*?\n\n`)
	insteadOf    = regexp.MustCompile(`(?m)^\| (\w+) \|.*\| ([a-z ]+) \|$`)
	capitals     = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)
)

// No name in the Go code, except in tests, has a word of the column "instead of".
func TestNamesHaveNoReplacedWords(t *testing.T) {
	words := insteadOf.FindAllStringSubmatch(tableOfWords.FindString(readFile(t, "CONTRIBUTING.md")), -1)
	if len(words) < 3 {
		t.Fatalf("the table of words replaces %d words, want some", len(words))
	}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			text := wordsOf(name.Name)
			for _, word := range words {
				if strings.Contains(text, " "+word[2]+" ") {
					t.Errorf("%s: the name %s has %q, want %q", s.position(n), name.Name, word[2], word[1])
				}
			}
			return true
		})
	}
}

func wordsOf(name string) string {
	return " " + strings.ToLower(strings.Join(capitals.FindAllString(name, -1), " ")) + " "
}
