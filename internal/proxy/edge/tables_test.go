package edge_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

var update = flag.Bool("update", false, "write the settings into the documentation")

// The documentation of the settings comes from the tables: the rows in docs/settings.md, and the
// syntax of the directive in docs/caddy.md.
func TestTheDocumentationHasTheTablesOfSettings(t *testing.T) {
	settings := page{t: t, path: "../../../docs/settings.md"}
	settings.read()
	settings.has("## A limit", row, edge.LimitTable)
	settings.has("## The handler", row, edge.HandlerTable)
	settings.has("## The database", row, edge.StoreTable)
	settings.has("## The policy", row, edge.PolicyTable)
	settings.has("## The history", row, edge.HistoryTable)
	settings.compare()

	pages := page{t: t, path: "../../../docs/page.md"}
	pages.read()
	pages.has("## Settings of the page", row, edge.PageTable)
	pages.compare()

	caddy := page{t: t, path: "../../../docs/caddy.md"}
	caddy.read()
	caddy.has("## The directive", syntaxLine(1), edge.LimitTable, edge.HandlerTable)
	caddy.has("\tpolicy {", syntaxLine(2), edge.PolicyTable)
	caddy.compare()
}

// page is a page of the documentation, and what it has to be.
type page struct {
	t         *testing.T
	path      string
	was, text string
}

func (p *page) read() {
	text, err := os.ReadFile(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.was, p.text = string(text), string(text)
}

const tableHead = "|---|---|---|\n"

// has puts the line of each setting below a heading: in the place of the line that the setting has, or
// else after that of the setting before. The first row comes after the head of the table.
func (p *page) has(heading string, line func(s edge.Setting) (begin, all string), tables ...[]edge.Setting) {
	before, after, found := strings.Cut(p.text, heading+"\n")
	if !found {
		p.t.Fatalf("%s has no %q", p.path, heading)
	}
	after, rest, more := strings.Cut(after, "\n## ")
	if more {
		rest = "\n## " + rest
	}
	last := max(strings.Index(after, tableHead), 0)
	if strings.HasPrefix(after[last:], tableHead) {
		last += len(tableHead)
	}
	for _, table := range tables {
		for _, s := range table {
			begin, all := line(s)
			if all == "" {
				continue
			}
			at := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(begin) + `.*\n`).FindStringIndex(after)
			if at == nil {
				at = []int{last, last}
			}
			after = after[:at[0]] + all + "\n" + after[at[1]:]
			last = at[0] + len(all) + 1
		}
	}
	p.text = before + heading + "\n" + after + rest
}

func (p *page) compare() {
	if p.text == p.was {
		return
	}
	if !*update {
		p.t.Errorf("%s does not have the settings of the tables: run go test ./internal/proxy/edge -update", p.path)
		return
	}
	if err := os.WriteFile(p.path, []byte(p.text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// row is the row of a setting in a table, with Traefik's name if that differs.
func row(s edge.Setting) (begin, all string) {
	begin = "| `" + s.Name + "`"
	if camelCase := wordAfter.ReplaceAllStringFunc(s.Name, func(part string) string { return strings.ToUpper(part[1:]) }); camelCase != s.Name {
		begin += ", `" + camelCase + "`"
	}
	begin += " |"
	if s.Help == "" {
		return begin, "" // the page has its own
	}
	return begin, begin + " " + s.Help + " | " + s.Default + " |"
}

var wordAfter = regexp.MustCompile(`_[a-z]`)

// syntaxLine is the line of a setting in the syntax of the directive.
func syntaxLine(depth int) func(s edge.Setting) (begin, all string) {
	return func(s edge.Setting) (begin, all string) {
		syntax, width := s.Syntax, 19-4*(depth-1)
		if s.Form == edge.Switch {
			syntax = "[on|off]"
		}
		begin = strings.Repeat("\t", depth) + s.Name + " "
		if syntax == "" {
			return begin, ""
		}
		return begin, strings.Repeat("\t", depth) + fmt.Sprintf("%-*s", width, s.Name) + syntax
	}
}
