package schema_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

var update = flag.Bool("update", false, "write generated.go and schema.sql anew")

// current compares a generated file with what it must be. With -update it writes the file.
func current(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current. Write it anew: go generate ./internal/core/schema", path)
	}
}

// version finds the number of the schema of the history or of the policy.
var version = regexp.MustCompile(`FUNCTION rate_limit_(history|policy)_version\(\) .* AS 'SELECT ([0-9]+)'`)

// generated is the Go file with the .sql files, and the version numbers that they contain.
func generated(t *testing.T, files []string) string {
	text := "// Code generated from the .sql files by go generate. DO NOT EDIT.\n\npackage schema\n"
	for _, file := range files {
		sql, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := ""
		for i, word := range strings.Split(strings.TrimSuffix(file, ".sql"), "_") {
			if i > 0 {
				word = strings.ToUpper(word[:1]) + word[1:]
			}
			name += word
		}
		text += fmt.Sprintf("\n// %s is %s.\nconst %s = `\n%s`\n", name, file, name, sql)
		for _, found := range version.FindAllSubmatch(sql, -1) {
			text += fmt.Sprintf("\n// %sVersion is the number in %s.\nconst %sVersion = %q\n", found[1], file, found[1], found[2])
		}
	}
	return text
}

// The interpreted packages cannot embed files, so generated.go has copies of them.
func TestTheGoFileIsCurrent(t *testing.T) {
	files, err := filepath.Glob("*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are %d .sql files: %v", len(files), err)
	}
	current(t, "generated.go", generated(t, files))
}

func TestTheSchemaFileIsWhatAStoreRuns(t *testing.T) {
	current(t, "../../../schema.sql", schema.File)
}

// Each .sql file is a part of the schema once, except that of databases with Citus.
func TestNoSQLFileIsLeftOut(t *testing.T) {
	files, _ := filepath.Glob("*.sql")
	for _, file := range files {
		sql, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(schema.File+schema.Parts, string(sql)); n != 1 {
			t.Errorf("%s is in the schema %d times", file, n)
		}
	}
}
