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

// The documentation of the settings comes from the tables: rows in docs/caddy.md and in
// docs/traefik.md, and the syntax of the directive.
func TestTheDocumentationHasTheTablesOfSettings(t *testing.T) {
	caddy := page{t: t, path: "../../../docs/caddy.md"}
	caddy.read()
	caddy.has("## The directive", row, edge.LimitTable, edge.HandlerTable)
	caddy.has("## The directive", syntaxLine(1), edge.LimitTable, edge.HandlerTable)
	caddy.has("\tpolicy {", syntaxLine(2), edge.PolicyTable)
	caddy.has("## The policy", row, edge.PolicyTable)
	caddy.has("## The global option", row, edge.StoreTable)
	caddy.has("## The history", row, edge.HistoryTable)
	caddy.compare()

	traefik := page{t: t, path: "../../../docs/traefik.md", traefik: true}
	traefik.read()
	traefik.has("## Settings", row, edge.LimitTable, edge.HandlerTable, edge.StoreTable)
	traefik.has("### The policy", row, edge.PolicyTable)
	traefik.has("### The history", row, edge.HistoryTable)
	traefik.compare()
}

// page is a page of the documentation, and what it has to be.
type page struct {
	t         *testing.T
	path      string
	traefik   bool
	was, text string
}

func (p *page) read() {
	text, err := os.ReadFile(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.was, p.text = string(text), string(text)
}

// has puts the line of each setting below a heading: in the place of the line that the setting has, or
// else after that of the setting before.
func (p *page) has(heading string, line func(s edge.Setting) (begin, all string), tables ...[]edge.Setting) {
	before, after, found := strings.Cut(p.text, heading+"\n")
	if !found {
		p.t.Fatalf("%s has no %q", p.path, heading)
	}
	last := 0
	for _, table := range tables {
		for _, s := range table {
			begin, all := line(p.named(s))
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
	p.text = before + heading + "\n" + after
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

// named returns a setting with the names and the links of a page.
func (p *page) named(s edge.Setting) edge.Setting {
	if !p.traefik {
		s.Help = strings.ReplaceAll(s.Help, "(caddy.md#", "(#")
		return s
	}
	camelCase := func(name string) string {
		return regexp.MustCompile(`_[a-z]`).ReplaceAllStringFunc(name, func(part string) string { return strings.ToUpper(part[1:]) })
	}
	for _, table := range [][]edge.Setting{edge.LimitTable, edge.HandlerTable, edge.StoreTable, edge.PolicyTable, edge.HistoryTable} {
		for _, other := range table {
			s.Help = strings.ReplaceAll(s.Help, "`"+other.Name+"`", "`"+camelCase(other.Name)+"`")
			s.Default = strings.ReplaceAll(s.Default, "`"+other.Name+"`", "`"+camelCase(other.Name)+"`")
		}
	}
	s.Name = camelCase(s.Name)
	return s
}

// row is the row of a setting in a table.
func row(s edge.Setting) (begin, all string) {
	begin = "| `" + s.Name + "` |"
	if s.Help == "" {
		return begin, "" // the page has its own
	}
	return begin, begin + " " + s.Help + " | " + s.Default + " |"
}

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
