package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// The lines of docs/performance.md between which a run writes its results.
const (
	resultsBegin = "<!-- `make bench` writes the lines from here -->\n"
	resultsEnd   = "<!-- to here -->\n"
)

// writeDocs writes the results into performance.md in a folder, and draws benchmark.svg there.
func (b *bench) writeDocs(folder string, args []string) error {
	path := filepath.Join(folder, "performance.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), resultsBegin)
	_, after, ended := strings.Cut(rest, resultsEnd)
	if !found || !ended {
		return fmt.Errorf("%s must have the lines %q and %q", path, resultsBegin, resultsEnd)
	}
	page := before + resultsBegin + "\n" + b.results(args) + "\n" + resultsEnd + after
	return errors.Join(os.WriteFile(path, []byte(page), 0o644), os.WriteFile(filepath.Join(folder, "benchmark.svg"), b.picture(), 0o644))
}

// needless is what the names of two rows that are compared share.
var needless = regexp.MustCompile(`^(Caddy|Traefik) \+ (sliding_window, )?|` + wide + "$")

// results are one table of all rows, as Markdown, after the command that measured them.
func (b *bench) results(args []string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "`%s` on %s\n", command(args), b.describeMachine())
	table := [][]string{{"", perSecond, "÷ plain, or ÷ bare upsert", "÷ the limiter on Redis", "÷ another row"}}
	for _, rows := range [][]*row{b.proxyRows, b.coreRows} {
		for _, r := range rows {
			also := ""
			if ratio := r.than(r.also); ratio.measured() {
				also = ratio.text(2) + " of " + needless.ReplaceAllString(r.also.name, "")
			}
			table = append(table, []string{r.name, number(spreadOf(r.figures(perSecond)).median, 0), r.ratioTo(r.baseline), r.ratioTo(r.redis), also})
		}
	}
	writeTable(&out, table)
	writeTable(&out, append([][]string{{"figure", ""}}, b.figures...))
	for _, complaint := range b.complaints {
		first, _, _ := strings.Cut(complaint, "\n")
		fmt.Fprintf(&out, "\n%s\n", first)
	}
	return regexp.MustCompile(` *(\|) *`).ReplaceAllString(out.String(), "$1") // a page needs no aligned columns
}

// ratioTo is the row's ratio to another one in a table, "" without one.
func (r *row) ratioTo(other *row) string {
	if ratio := r.than(other); ratio.measured() {
		return ratio.text(2)
	}
	return ""
}

// command is the command of a run with arguments.
func command(args []string) string {
	text := "make bench"
	if strings.Join(args, " ") == "-docs ../docs" {
		return text
	}
	plain := regexp.MustCompile(`^[\w./-]+$`)
	for i, arg := range args {
		if !plain.MatchString(arg) {
			args[i] = "'" + strings.ReplaceAll(arg, "$", "$$") + "'"
		}
	}
	return text + ` BENCHFLAGS="` + strings.Join(args, " ") + `"`
}
