package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the folder of the repository, from this package's folder.
const root = "../.."

// document is a page of the documentation.
type document struct {
	path   string // from root, such as docs/caddy.md
	text   string
	blocks []block
}

// block is a code block of a document.
type block struct {
	document string
	line     int    // of its first line, from 1
	chapter  string // the heading of the second level above it
	section  string // the heading above it
	language string
	text     string // without the indentation of the fence, ends with a newline
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.document, b.line) }

// readFile returns the text of a file.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documents reads all pages.
func documents(t *testing.T) []document {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(paths) < 7 {
		t.Fatalf("docs has %d pages, error %v, want at least 7", len(paths), err)
	}
	generated, err := filepath.Glob(filepath.Join(root, "docs", "generated", "*.md"))
	if err != nil || len(generated) < 3 {
		t.Fatalf("docs/generated has %d pages, error %v, want at least 3", len(generated), err)
	}
	paths = append(paths, generated...)
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md",
		"SECURITY.md", "bench/README.md"} {
		paths = append(paths, filepath.Join(root, name))
	}
	var pages []document
	for _, path := range paths {
		text := readFile(t, path)
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		d := document{path: filepath.ToSlash(name), text: text}
		if d.blocks, err = blocksOf(d.path, d.text); err != nil {
			t.Fatal(err)
		}
		pages = append(pages, d)
	}
	return pages
}

// blocksOf returns the code blocks of a Markdown text.
func blocksOf(path, text string) ([]block, error) {
	var blocks []block
	var indent, chapter, section string
	inside := false
	number := 0
	for line := range strings.Lines(text) {
		number++
		trimmed := strings.TrimSpace(line)
		if title := heading.FindStringSubmatch(line); title != nil && !inside {
			section = title[1]
			if strings.HasPrefix(line, "## ") {
				chapter = section
			}
		}
		switch {
		case !inside && strings.HasPrefix(trimmed, "```"):
			inside = true
			indent, _, _ = strings.Cut(line, "`")
			blocks = append(blocks, block{document: path, line: number + 1, chapter: chapter,
				section: section, language: strings.TrimPrefix(trimmed, "```")})
		case inside && trimmed == "```":
			inside = false
		case inside:
			b := &blocks[len(blocks)-1]
			without, found := strings.CutPrefix(line, indent)
			if !found && trimmed != "" {
				return nil, fmt.Errorf("%s:%d: the line is indented less than its code block", path, number)
			}
			b.text += without
		}
	}
	if inside {
		return nil, fmt.Errorf("%s: a code block has no end", path)
	}
	return blocks, nil
}

// blocksIn returns the blocks of a language without those that another test has. It fails if none is left.
func blocksIn(t *testing.T, language string, others ...func(b block) bool) []block {
	t.Helper()
	var found []block
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			isOther := func(is func(b block) bool) bool { return is(b) }
			if b.language == language && !slices.ContainsFunc(others, isOther) {
				found = append(found, b)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("no document has a %s block for this test", language)
	}
	return found
}

// testedLanguages maps a language to the test that runs or checks every code block of this language. The
// tests are in this package, except for sh, which `make rehearse` runs.
var testedLanguages = map[string]string{
	"caddyfile": "TestCaddyfilesOfPagesAreValid",
	"console":   "TestCommandsOfPagesAreTested",
	"go":        "TestGoSnippetsAreCompiled",
	"js":        "TestTheGuideOfLanguageModelsIsEnough",
	"json":      "TestJSONOfPagesIsHandlerOrBody",
	"sh":        "TestRehearsal",
	"sql":       "TestQueriesOfPagesFindRows",
	"yaml":      "TestTraefikConfigurationsOfPagesAreValid",
}

// Each code block has text, and a language that a test takes, unless it is a picture.
func TestEveryCodeBlockIsTested(t *testing.T) {
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			isPicture := b.language == "text" && (d.path == "README.md" || d.path == "ARCHITECTURE.md")
			if testedLanguages[b.language] == "" && !isPicture {
				t.Errorf("%s: no test takes blocks of the language %q", b, b.language)
			}
			if b.language == "sh" && d.path != "docs/servers.md" {
				t.Errorf("%s: make rehearse runs the sh blocks of docs/servers.md alone", b)
			}
			if strings.TrimSpace(b.text) == "" {
				t.Errorf("%s: the code block is empty", b)
			}
		}
	}
	for language, name := range testedLanguages {
		if !hasTest(t, "integration/docs", name) && !hasTest(t, "integration", name) {
			t.Errorf("the test of %s blocks, %s, does not exist", language, name)
		}
	}
}

// hasTest reports whether a folder's own tests contain a test, benchmark or
// example function.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declaration := regexp.MustCompile(`(?m)^func ` + name + `\(`)
	return slices.ContainsFunc(files, func(file string) bool {
		return declaration.MatchString(readFile(t, file))
	})
}

var testName = regexp.MustCompile("`((?:Test|Benchmark|Fuzz)[A-Z]\\w+)`")

// promisesPages lists the pages with tables of promises and their tests. The README also names tests.
var promisesPages = []string{"docs/promises.md", "docs/security.md"}

// Each row of a table of promises names a test, each named test exists, and no other page names a test.
func TestEachPromiseHasATest(t *testing.T) {
	folders := []string{"integration", "integration/clients", "integration/docs", "integration/reports"}
	for _, parent := range []string{"admin", "caddymodule", "internal", "ratelimit", "traefikplugin"} {
		err := filepath.WalkDir(filepath.Join(root, parent), func(path string, entry os.DirEntry,
			err error) error {
			if err == nil && entry.IsDir() {
				folder, err := filepath.Rel(root, path)
				folders = append(folders, folder)
				return err
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range documents(t) {
		names := testName.FindAllStringSubmatch(d.text, -1)
		if !slices.Contains(promisesPages, d.path) && d.path != "README.md" && len(names) > 0 {
			t.Errorf("%s names %s: tests are named in README.md and %v only", d.path, names[0][1],
				promisesPages)
		}
		for _, match := range names {
			exists := func(folder string) bool { return hasTest(t, folder, match[1]) }
			if !slices.ContainsFunc(folders, exists) {
				t.Errorf("%s names the test %s, which does not exist", d.path, match[1])
			}
		}
		if !slices.Contains(promisesPages, d.path) {
			continue
		}
		promises, _, _ := strings.Cut(d.text, "\n## ") // below it, docs/security.md has functions
		for _, row := range regexp.MustCompile(`(?m)^\| .*$`).FindAllString(promises, -1)[1:] {
			if !testName.MatchString(row) {
				t.Errorf("%s: no test in %q", d.path, row)
			}
		}
	}
}

var (
	link        = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading     = regexp.MustCompile(`(?m)^#+ (.*)$`)
	inlineCode  = regexp.MustCompile("`[^`\n]*`")
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors returns the targets of links into a Markdown text, as GitHub makes them.
func anchors(text string) []string {
	var targets []string
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		plain := notInAnchor.ReplaceAllString(strings.ToLower(match[1]), "")
		targets = append(targets, strings.ReplaceAll(plain, " ", "-"))
	}
	return targets
}

// withoutCode removes code, which may look like links and headings.
func withoutCode(d document) string {
	text := d.text
	for _, b := range d.blocks {
		text = strings.Replace(text, b.text, "", 1)
	}
	return inlineCode.ReplaceAllString(text, "")
}

// Each link of the documentation leads to an existing file, and to a heading of its page if it has an anchor.
func TestLinksLeadSomewhere(t *testing.T) {
	pages := documents(t)
	for _, d := range pages {
		for _, match := range link.FindAllStringSubmatch(withoutCode(d), -1) {
			target := match[1]
			if strings.HasPrefix(target, "https://") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			file := d.path
			if path != "" {
				file = filepath.ToSlash(filepath.Join(filepath.Dir(d.path), path))
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s links to %s: %v", d.path, target, err)
				continue
			}
			i := slices.IndexFunc(pages, func(other document) bool { return other.path == file })
			if anchor != "" && (i < 0 || !slices.Contains(anchors(pages[i].text), anchor)) {
				t.Errorf("%s links to %s: no such heading", d.path, target)
			}
		}
	}
}

// page returns a page of the documentation.
func page(t *testing.T, path string) document {
	t.Helper()
	pages := documents(t)
	i := slices.IndexFunc(pages, func(d document) bool { return d.path == path })
	if i < 0 {
		t.Fatalf("no document %s", path)
	}
	return pages[i]
}

// section returns the part of a document under a heading, up to the next heading
// of any level.
func section(t *testing.T, path, title string) string {
	t.Helper()
	_, after, found := strings.Cut(page(t, path).text, "# "+title+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", path, title)
	}
	if at := heading.FindStringIndex(after); at != nil {
		after = after[:at[0]]
	}
	return after
}

// settingsPage has the tables of all settings.
const settingsPage = "docs/generated/settings.md"

var firstCell = regexp.MustCompile("(?m)^\\| `([^`]+)`")

// tableNames returns the names in code font in the first column of a section's
// table.
func tableNames(t *testing.T, path, title string) []string {
	t.Helper()
	var names []string
	for _, match := range firstCell.FindAllStringSubmatch(section(t, path, title), -1) {
		names = append(names, match[1])
	}
	if len(names) == 0 {
		t.Fatalf("%s: the table under %q has no names", path, title)
	}
	return names
}

// sameNames fails the test unless two lists have the same names, in any order.
func sameNames(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s lists\n%q\nwant, by the code,\n%q", what, got, want)
	}
}
