package schema_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// compactSQL returns the SQL of a file without comments and blank lines. The lines of a statement are joined,
// up to 240 columns. In the bodies of functions, which psql shows, only a line that continues the line before
// is joined, up to 200 columns.
func compactSQL(t *testing.T, file string) string {
	t.Helper()
	text := sqltest.ReadFile(t, file)
	sql, last, inBody, quoted, indent := "", "", false, false, 0
	for _, line := range strings.Split(text, "\n") {
		start := strings.TrimSpace(line)
		if start == "" || strings.HasPrefix(start, "--") {
			continue
		}
		edge := strings.Count(line, "$$")%2 == 1
		if !inBody && strings.Contains(line, " -- ") {
			t.Fatalf("%s: a comment at the end of a line outside of a body: %s", file, line)
		}
		joins := !inBody && !edge && last != "" && !strings.HasSuffix(last, ";") && len(last)+len(start) < 240
		depth := len(line) - len(strings.TrimLeft(line, "\t"))
		if inBody && !edge && !quoted {
			// A line that continues the one before is indented by more.
			joins = last != "" && depth > indent && !opens.MatchString(last) &&
				!strings.Contains(last, "--") &&
				len(last)+len(start) < 200
		}
		quoted = quoted != (strings.Count(line, "'")%2 == 1)
		if !joins {
			indent = depth
		}
		switch {
		case joins && strings.HasSuffix(last, "'") && strings.HasPrefix(start, "'"):
			// Two literals are one only if they are on two lines.
			sql = sql[:len(sql)-1] + start[1:]
			last = last[:len(last)-1] + start[1:]
		case joins:
			sql += " " + start
			last += " " + start
		case sql == "":
			sql, last = line, line
		default:
			sql += "\n" + line
			last = line
		}
		inBody = inBody != edge
		if edge || quoted {
			last = ""
		}
	}
	return sql + "\n"
}

// opens matches the end of a line after which a block is indented.
var opens = regexp.MustCompile(`(;|\b(BEGIN|THEN|LOOP|ELSE|DECLARE|EXCEPTION))$`)

// version matches the number of the schema of the history or of the policy.
var version = regexp.MustCompile(`FUNCTION rate_limit_(history|policy)_version\(\) .* AS 'SELECT ([0-9]+)'`)

// generateGo returns a Go file with the .sql files, and the version numbers in them.
func generateGo(t *testing.T, files []string) string {
	text := "// Code generated from the .sql files by go generate. DO NOT EDIT.\n//\n// Comments are in " +
		"the .sql files alone.\n\npackage schema\n"
	for _, file := range files {
		sql := compactSQL(t, file)
		name := ""
		words := strings.FieldsFunc(strings.TrimSuffix(file, ".sql"),
			func(c rune) bool { return c == '/' || c == '_' })
		for i, word := range words {
			if i > 0 {
				word = strings.ToUpper(word[:1]) + word[1:]
			}
			name += word
		}
		text += fmt.Sprintf("\nconst %s = `\n%s`\n", name, sql)
		for _, found := range version.FindAllStringSubmatch(sql, -1) {
			text += fmt.Sprintf("\n// %sVersion is the number in %s.\nconst %sVersion = %q\n", found[1], file,
				found[1], found[2])
		}
	}
	return text
}

// sqlFiles returns the .sql files of this folder and of its rooms.
func sqlFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.sql")
	rooms, errRooms := filepath.Glob("*/*.sql")
	if err != nil || errRooms != nil || len(files) == 0 || len(rooms) == 0 {
		t.Fatalf("there are %d and %d .sql files: %v, %v", len(files), len(rooms), err, errRooms)
	}
	return append(files, rooms...)
}

// generated.go has copies of the .sql files, because interpreted packages cannot embed files.
func TestGeneratedFileIsCurrent(t *testing.T) {
	golden.Check(t, "generated.go", generateGo(t, sqlFiles(t)))
}

// Each .sql file is in the schema once, but describe.sql, grants.sql and end.sql are in each of the three
// parts, and key_name.sql is in two.
func TestNoSQLFileIsLeftOut(t *testing.T) {
	for _, file := range sqlFiles(t) {
		got, want := strings.Count(schema.File+schema.Shards, compactSQL(t, file)), 1
		switch file {
		case "describe.sql", "end.sql", "grants.sql":
			want = 3
		case "key_name.sql":
			want = 2
		}
		if got != want {
			t.Errorf("%s is in the schema %d times, want %d", file, got, want)
		}
	}
}
