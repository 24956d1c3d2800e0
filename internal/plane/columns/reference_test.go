package columns_test

import (
	"flag"
	"fmt"
	"os"
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
