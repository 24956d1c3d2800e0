package imports

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sameType is a name that types of several packages have, because it means the same in all of them.
type sameType struct {
	names  string // separated by spaces
	dirs   []string
	reason string
}

var adapters = []string{"caddymodule", "traefikplugin"}

var sameTypes = []sameType{
	{"Options Settings Stats", nil, "each package has its own, and users of the package name it first: lease.Options"},
	{"History LimitSettings Policy Retention Zone compiledPolicy recorder responseWriter template zone", adapters, "both adapters have the same parts"},
	{"LimitSettings", []string{"caddymodule", "internal/proxy/edge"}, "the settings of a limit, as JSON and as they are read"},
	{"Policy", []string{"caddymodule", "traefikplugin", "internal/plane/policy"}, "a policy, and its settings in a configuration"},
	{"Retention", []string{"caddymodule", "traefikplugin", "internal/plane/history"}, "how long a part of the history is kept"},
	{"Ban Override Rule RuleLimit", []string{"internal/plane/admin", "internal/plane/policy"}, "one row of a table, as a list shows it and as a snapshot needs it"},
	{"Node", []string{"internal/plane/admin", "ratelimit/postgres"}, "a row of the registry of proxies"},
	{"DB", []string{"ratelimit/pgxdb", "ratelimit/postgres"}, "the interface, and its implementation over pgx"},
	{"Store", []string{"ratelimit", "ratelimit/memory", "ratelimit/postgres"}, "the interface and its implementations"},
	{"Row", []string{"internal/core/algorithm", "internal/plane/policyfile"}, "the columns of a row"},
	{"Sender", []string{"internal/plane/admin", "internal/proxy/edge"}, "who sends requests"},
	{"Setting", []string{"internal/plane/admin", "internal/proxy/edge"}, "the name of a setting and its help"},
	{"column", []string{"internal/plane/admin", "internal/plane/archive"}, "a column of a table and its type"},
	{"dataset", []string{"caddymodule/command", "internal/plane/page"}, "the counters, the policy or the history, which may be in databases of their own"},
	{"prepared", []string{"internal/proxy/pgwire", "ratelimit/pgxdb"}, "what a connection knows of a prepared statement"},
	{"tablesFound", []string{"internal/plane/policy", "ratelimit/postgres"}, "which tables a migration finds"},
}

// has reports whether packages in all of these folders may declare a type of that name.
func (s sameType) has(name string, dirs []string) bool {
	return slices.Contains(strings.Fields(s.names), name) &&
		(s.dirs == nil || !slices.ContainsFunc(dirs, func(dir string) bool { return !slices.Contains(s.dirs, dir) }))
}

// declared are the names that shipped packages declare: of each name the folders, and of each type too.
type declared struct{ names, types map[string][]string }

func (d *declared) add(dir string, file *ast.File) {
	name := func(id *ast.Ident) {
		if id != nil && !slices.Contains(d.names[id.Name], dir) {
			d.names[id.Name] = append(d.names[id.Name], dir)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			name(n.Name)
		case *ast.TypeSpec:
			name(n.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				name(id)
			}
		case *ast.Field:
			for _, id := range n.Names {
				name(id)
			}
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					name(id)
				}
			}
		case *ast.RangeStmt:
			for _, left := range []ast.Expr{n.Key, n.Value} {
				if id, ok := left.(*ast.Ident); ok {
					name(id)
				}
			}
		}
		return true
	})
	for _, decl := range file.Decls {
		if general, ok := decl.(*ast.GenDecl); ok {
			for _, spec := range general.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok {
					d.types[t.Name.Name] = append(d.types[t.Name.Name], dir)
				}
			}
		}
	}
}

// shipped reads the packages that are neither tests nor support of tests.
func shipped(t *testing.T) *declared {
	d := &declared{names: map[string][]string{}, types: map[string][]string{}}
	for _, p := range goList(t, "./...") {
		dir := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasPrefix(dir, "internal/testkit") || dir == "internal/demo" {
			continue
		}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			d.add(dir, file)
		}
	}
	return d
}

// reserved is a word with one meaning: only the packages of that meaning have it in names.
type reserved struct {
	word, instead string
	dirs          []string // the folders of these packages
}

var (
	reservedRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\| ([^|]*) \\|$")
	quoted      = regexp.MustCompile("`([^`]+)`")
	wordOfName  = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)
)

// readReserved reads the table of such words in CONTRIBUTING.md.
func readReserved(t *testing.T) []reserved {
	text, err := os.ReadFile(root + "/CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n| word in names |")
	table, _, _ = strings.Cut(table, "\n\n")
	var all []reserved
	for _, row := range reservedRow.FindAllStringSubmatch(table, -1) {
		r := reserved{word: row[1], instead: row[2]}
		for _, dir := range quoted.FindAllStringSubmatch(row[3], -1) {
			r.dirs = append(r.dirs, dir[1])
		}
		all = append(all, r)
	}
	if !found || len(all) != strings.Count(table, "\n|")-1 {
		t.Fatalf("CONTRIBUTING.md has a table with %d rows, of which the test understands %d", strings.Count(table, "\n|")-1, len(all))
	}
	return all
}

// check returns a complaint for each name that has the word in a package of another meaning.
func (r reserved) check(d *declared) []string {
	var complaints []string
	timeZone := strings.NewReplacer("TimeZone", "", "timeZone", "") // is not a zone
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if !slices.ContainsFunc(wordOfName.FindAllString(timeZone.Replace(name), -1), func(part string) bool {
			part = strings.ToLower(part)
			return part == r.word || part == r.word+"s"
		}) {
			continue
		}
		for _, dir := range d.names[name] {
			if !slices.Contains(r.dirs, dir) {
				complaints = append(complaints, fmt.Sprintf("%s: %s has the word %q: write %s", dir, name, r.word, r.instead))
			}
		}
	}
	return complaints
}

func TestWordsHaveOneMeaningInNames(t *testing.T) {
	d := shipped(t)
	for _, r := range readReserved(t) {
		for _, complaint := range r.check(d) {
			t.Error(complaint)
		}
		for _, dir := range r.dirs {
			if one := (reserved{word: r.word}).check(d); !slices.ContainsFunc(one, func(c string) bool { return strings.HasPrefix(c, dir+":") }) {
				t.Errorf("CONTRIBUTING.md allows %q in names of %s, which has none", r.word, dir)
			}
		}
	}
}

func TestTypesOfOneNameMeanTheSame(t *testing.T) {
	d := shipped(t)
	used := make([]bool, len(sameTypes))
	for _, name := range slices.Sorted(maps.Keys(d.types)) {
		dirs := d.types[name]
		if len(dirs) < 2 {
			continue
		}
		allowed := false
		for i, s := range sameTypes {
			if s.has(name, dirs) {
				allowed, used[i] = true, true
			}
		}
		if !allowed {
			t.Errorf("%s all declare a type %s: give those with another meaning another name, or say here why it is the same", strings.Join(dirs, ", "), name)
		}
	}
	for i, s := range sameTypes {
		if !used[i] {
			t.Errorf("no several packages declare a type of %s", s.names)
		}
	}
}

func TestAWordInAnotherMeaningIsFound(t *testing.T) {
	const source = "package x\ntype seat struct{ Place int }\nfunc f() { for placeOf := range 3 { replaced := placeOf; _ = replaced } }"
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &declared{names: map[string][]string{}, types: map[string][]string{}}
	d.add("x", file)
	got := reserved{word: "place", instead: "index"}.check(d)
	want := []string{`x: Place has the word "place": write index`, `x: placeOf has the word "place": write index`}
	if !slices.Equal(got, want) || len(d.types["seat"]) != 1 {
		t.Errorf("got %q and the types %v, want %q", got, d.types, want)
	}
	if got := (reserved{word: "place", dirs: []string{"x"}}).check(d); len(got) > 0 {
		t.Errorf("the package may have the word: %q", got)
	}
}
