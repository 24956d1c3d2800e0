package columns_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

var update = flag.Bool("update", false, "write the columns into the documentation")

// The page of the policy has a line for each column.
func TestThePageOfThePolicyDescribesEachColumn(t *testing.T) {
	const (
		page = "../../../docs/policy.md"
		from = "<!-- `go test ./internal/plane/columns -update` writes the lines from here -->\n"
		to   = "<!-- to here -->\n"
	)
	file, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(file), from)
	lines, after, ends := strings.Cut(rest, to)
	want := "\n" + reference() + "\n"
	switch {
	case !found || !ends:
		t.Fatalf("%s lacks the lines %s and %s", page, from, to)
	case lines == want:
	case !*update:
		t.Errorf("%s does not have the columns as they are: run go test ./internal/plane/columns -update; want %s", page, want)
	default:
		if err := os.WriteFile(page, []byte(before+from+want+to+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Each column has a comment in the database, which psql shows.
func TestTheDatabaseDescribesEachColumn(t *testing.T) {
	const file = "../../core/schema/comments.go"
	want := comments()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s does not have the columns as they are: run go generate ./internal/core/schema; %v", file, err)
	}
}

// comments are the statements that write the comments of all columns, as a file of Go.
func comments() string {
	text := "// Code generated from package columns by go generate. DO NOT EDIT.\n\npackage schema\n\n" +
		"// policyComments are the comments of the columns that people set.\nconst policyComments = `\n"
	for _, t := range columns.Tables {
		for _, c := range t.Columns {
			help, word := c.Help, regexp.MustCompile("^[a-z_]+:?").FindString(c.Help)
			if !strings.HasSuffix(word, ":") && !slices.Contains(append(c.Choices, c.Examples...), word) { // else it is a value
				help = strings.ToUpper(help[:1]) + help[1:]
			}
			if c.Kind == columns.Moment || c.Kind == columns.Range {
				help, _, _ = strings.Cut(help, ": ") // how commands take it
			}
			if c.Default == columns.Never {
				help += ". infinity: never"
			}
			text += fmt.Sprintf("COMMENT ON COLUMN %s.%s IS '%s.';\n", t.Name, c.Name, strings.ReplaceAll(help, "'", "''"))
		}
	}
	return text + "`\n"
}

// reference are the lines on all columns.
func reference() string {
	var tables []string
	for _, t := range columns.Tables {
		text := "**" + t.Name + "**\n\n"
		for _, c := range t.Columns {
			text += "- `" + c.Name + "`"
			if c.Kind != columns.Text {
				text += " " + c.Kind.SQL()
			}
			if c.Max > 0 {
				text += fmt.Sprintf(", %d to %d", c.Min, c.Max)
			}
			if value := shown(c.Default); value != "" {
				text += ", default `" + value + "`"
			}
			text += ": " + c.Help + "\n"
		}
		tables = append(tables, text)
	}
	return strings.Join(tables, "\n")
}

// shown is a default, or "" if it is to set nothing.
func shown(value any) string {
	switch value := value.(type) {
	case []string:
		return strings.Join(value, ",")
	case string:
		return strings.TrimPrefix(value, columns.Always)
	}
	return ""
}
