package imports

import (
	"go/doc"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// The page of packages has the first sentence of each package's comment.
func TestPageListsEachPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it follows the comments of all packages")
	}
	comments := map[string]string{}
	for _, s := range sources(t) {
		if strings.Contains(s.path, "testdata/") {
			continue
		}
		comment := s.Doc.Text()
		if comment != "" || comments[s.dir] == "" {
			comments[s.dir] = new(doc.Package).Synopsis(comment)
		}
	}
	rows := ""
	for _, dir := range slices.Sorted(maps.Keys(comments)) {
		if comments[dir] == "" {
			continue // tests of the SQL beside them
		}
		_, text, found := strings.Cut(comments[dir], " ") // Package NAME does
		_, after, ok := strings.Cut(text, " ")
		if text = comments[dir]; found && ok && strings.HasPrefix(text, "Package ") {
			text = after
		}
		rows += "| `" + dir + "` | " + strings.ReplaceAll(text, "|", `\|`) + " |\n"
	}
	golden.CheckPage(t, root+"/docs/generated/packages.md", "testdata/packages.md",
		map[string]string{"PACKAGES": rows})
}
