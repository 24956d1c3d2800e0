package reports

import (
	_ "embed"
	"net/http"
	"strconv"
	"strings"
)

//go:embed testdata/reports.txt
var textOfReports string

// upstreams are the upstreams that a text names.
var upstreams = map[string]http.HandlerFunc{"mustNotBeAsked": mustNotBeAsked, "limited": limited,
	"known": known, "answersUpgrades": answersUpgrades}

// readReports reads the text of reports, which describes its form.
func readReports(text string) (all []report) {
	var s *site
	for entry := range strings.SplitSeq(strings.ReplaceAll(text, "\n\t", "\v"), "\n") {
		name, value, _ := strings.Cut(strings.ReplaceAll(entry, "\v", "\n"), " ")
		number, rest, _ := strings.Cut(value, " ")
		n, _ := strconv.Atoi(number)
		switch name {
		case "", "#":
		case "report":
			all = append(all, report{name: number, source: rest})
		case "site":
			r := &all[len(all)-1]
			r.sites = append(r.sites, site{only: value})
			s = &r.sites[len(r.sites)-1]
		case "zone":
			s.zones = append(s.zones, value)
		case "policy":
			s.policy = value + " " // "" is none
		case "cost":
			*s = cost(strings.Fields(value)...)
		case "upstream":
			if s.upstream = upstreams[value]; s.upstream == nil {
				panic("testdata/reports.txt: upstream " + value + ": must be one of upstreams")
			}
		case "ask":
			s.asks = append(s.asks, ask{n: n, line: rest})
		case "open":
			s.open = true
		case "socket":
			s.socket = n
		case "rows":
			s.rows = n
		case "noRows":
			s.noRows = true
		case "headers", "status", "body":
			a := &s.asks[len(s.asks)-1]
			*map[string]*string{"headers": &a.headers, "status": &a.want, "body": &a.body}[name] = value
		default:
			field := map[string]*string{"handler": &s.handler, "sql": &s.sql, "directive": &s.directive,
				"before": &s.before, "after": &s.after, "rule": &s.rule, "refused": &s.refused,
				"want": &s.want, "seen": &s.seen}[name]
			if field == nil {
				panic("testdata/reports.txt: " + name + ": must be a field of a site")
			}
			*field = value
		}
	}
	return all
}
