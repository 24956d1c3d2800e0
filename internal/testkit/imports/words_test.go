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

// homes lists words that have other meanings elsewhere, each with the folders of its meaning in the table of
// words, and the names that are right everywhere.
var homes = []struct{ word, folders, elsewhere string }{
	{"zone", "caddymodule traefikplugin internal/proxy internal/testkit bench", "time zone"},
	{"slot", "ratelimit internal/store internal/core internal/testkit", ""},
	{"lane", "internal/store", ""},
}

func TestWordsStayWhereTheyHaveTheirMeaning(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		var check func(n ast.Node) bool
		check = func(n ast.Node) bool {
			if selector, ok := n.(*ast.SelectorExpr); ok {
				ast.Inspect(selector.X, check) // another module may have declared the selected name
				return false
			}
			name, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			for _, home := range homes {
				text := strings.ReplaceAll(wordsOf(name.Name), home.elsewhere+" ", " ")
				if strings.Contains(text, " "+home.word) && !isIn(s.dir, home.folders) {
					t.Errorf("%s: the name %s has %q, which has another meaning in %s", s.position(n),
						name.Name, home.word, home.folders)
				}
			}
			return true
		}
		ast.Inspect(s.File, check)
	}
}

func isIn(dir, folders string) bool {
	for _, folder := range strings.Fields(folders) {
		if dir == folder || strings.HasPrefix(dir, folder+"/") {
			return true
		}
	}
	return false
}
