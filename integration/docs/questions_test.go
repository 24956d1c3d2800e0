package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each page that code, errors, alerts and examples name exists, and has the heading that they name.
func TestPagesNamedInFilesExist(t *testing.T) {
	headings := map[string][]string{}
	for _, d := range documents(t) {
		headings[d.path] = anchors(d.text)
	}
	named := regexp.MustCompile(`\bdocs/[\w/-]+\.(?:md|yml|json|svg)\b(#[\w-]+)?`)
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(entry.Name(), ".") && path != root
		if entry.IsDir() && (hidden || entry.Name() == "bin") {
			return fs.SkipDir
		}
		kinds := []string{".go", ".sql", ".yml", ".yaml", ".json", "", ".service"}
		if entry.IsDir() || !slices.Contains(kinds, filepath.Ext(path)) ||
			strings.HasPrefix(path, filepath.Join(root, "integration/docs")) {
			return nil
		}
		text, err := os.ReadFile(path)
		files++
		for _, match := range named.FindAllStringSubmatch(string(text), -1) {
			page, anchor, _ := strings.Cut(match[0], "#")
			if _, err := os.Stat(filepath.Join(root, page)); err != nil {
				t.Errorf("%s names %s: %v", path, match[0], err)
			} else if anchor != "" && !slices.Contains(headings[page], anchor) {
				t.Errorf("%s names %s: no such heading", path, match[0])
			}
		}
		return err
	})
	if err != nil || files < 500 {
		t.Errorf("%d files, error %v, want at least 500", files, err)
	}
}
