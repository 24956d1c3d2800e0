package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// columns are those after the name, the rate and the ratios, with their decimal places.
var columns = []struct {
	title  string
	places int
}{{p50, 2}, {p99, 2}, {cpuProxy, 1}, {cpuStore, 1}, {cpuWrk, 1}, {statements, 3}, {walBytes, 0}, {objects, 1}, {refused, 1}}

// report prints all results, as Markdown.
func (b *bench) report(w io.Writer) {
	writeRows(w, "÷ plain", b.proxyRows)
	writeRows(w, "÷ bare upsert", b.coreRows)
	others := [][]string{{"row", "compared with", "÷ it", "÷ it, by CPU"}}
	for _, r := range b.proxyRows {
		for _, other := range []*row{r.also, r.redis, r.before} {
			if ratio := r.than(other); ratio.measured() {
				others = append(others, []string{r.name, other.name, ratio.text(2), r.thanByCPU(other).text(2)})
			}
		}
	}
	writeTable(w, others)
	writeTable(w, append([][]string{{"figure", ""}}, b.figures...))
	for _, r := range b.proxyRows {
		for _, s := range r.samples {
			b.wrong(int(s[wrong]), r.name+", in one round")
		}
	}
	for _, complaint := range b.complaints {
		fmt.Fprintf(w, "\n%s\n", complaint)
	}
	fmt.Fprintf(w, "\nAll of it took %v.\n", time.Since(b.began).Round(time.Second))
}

// writeRows writes a table of the rows. What was 0 in every round is "–": without a store,
// a row has no figures of the store.
func writeRows(w io.Writer, ratio string, rows []*row) {
	table := [][]string{{"", perSecond, ratio, ratio + ", by CPU"}}
	for _, c := range columns {
		table[0] = append(table[0], c.title)
	}
	for _, r := range rows {
		line := []string{r.name, spreadOf(r.figures(perSecond)).text(0), r.than(r.baseline).text(2), r.thanByCPU(r.baseline).text(2)}
		for _, c := range columns {
			cell := "–"
			if s := spreadOf(r.figures(c.title)); s.high > 0 {
				cell = s.text(c.places)
			}
			line = append(line, cell)
		}
		table = append(table, line)
	}
	writeTable(w, table)
}

// writeTable writes a table in Markdown, unless it has only its first line, the head.
func writeTable(w io.Writer, table [][]string) {
	if len(table) == 1 {
		return
	}
	fmt.Fprintln(w)
	aligned := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	for i, line := range table {
		fmt.Fprintf(aligned, "| %s\t|\n", strings.Join(line, "\t| "))
		if i == 0 {
			fmt.Fprintf(aligned, "| ---%s\t|\n", strings.Repeat("\t| --:", len(line)-1))
		}
	}
	check(aligned.Flush())
}
