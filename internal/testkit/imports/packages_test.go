package imports

import (
	"go/doc"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
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

var fileName = regexp.MustCompile(`\w+\.go\b`)

// A comment that lists the files of its package has all of them, except tests and doc.go.
func TestPackagesListTheirFiles(t *testing.T) {
	files, lists := map[string][]string{}, map[string][]string{}
	for _, s := range sources(t) {
		if name := path.Base(s.path); !s.isTest() && name != "doc.go" {
			files[s.dir] = append(files[s.dir], name)
		}
		if _, list, ok := strings.Cut(s.Doc.Text(), "The files, from the top down: "); ok {
			list, _, _ = strings.Cut(list, "\n\n")
			lists[s.dir] = slices.Sorted(slices.Values(fileName.FindAllString(list, -1)))
		}
	}
	for dir, list := range lists {
		check.Equal(t, "the files that the comment of "+dir+" lists", list, files[dir])
	}
}
