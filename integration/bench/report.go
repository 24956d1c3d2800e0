package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// column is a column of a table: a figure of the rows.
type column struct {
	title  string
	format format
	median bool // write only the median
	figure func(sample) float64
}

// The columns after the name, the rate and the ratio.
var (
	proxyColumns = []column{
		{title: "p50 ms", format: places(2), figure: func(s sample) float64 { return s.p50 }},
		{title: "p99 ms", format: places(2), figure: func(s sample) float64 { return s.p99 }},
		{title: "CPU µs/request: proxy", format: places(1), figure: func(s sample) float64 { return s.clientCPU }},
		{title: "store", format: places(1), figure: func(s sample) float64 { return s.storeCPU }},
		{title: "wrk", format: places(1), figure: func(s sample) float64 { return s.wrkCPU }, median: true},
		{title: "statements/request", format: places(3), figure: func(s sample) float64 { return s.statements }},
		{title: "WAL bytes/request", format: places(0), figure: func(s sample) float64 { return s.wal }, median: true},
		{title: "refused", format: percent, figure: func(s sample) float64 { return s.refused }, median: true},
	}
	coreColumns = []column{
		{title: "CPU µs/decision: client", format: places(2), figure: func(s sample) float64 { return s.clientCPU }},
		{title: "Postgres", format: places(2), figure: func(s sample) float64 { return s.storeCPU }},
		{title: "decisions/statement", format: places(1), figure: func(s sample) float64 { return 1 / s.statements }},
		{title: "refused", format: percent, figure: func(s sample) float64 { return s.refused }, median: true},
	}
)

// cell is a row's figure in the column, or "–" if it was 0 in every round: without a
// store, a row has no figures of the store.
func (c *column) cell(r *row) string {
	switch s := spreadOf(r.figures(c.figure)); {
	case s.high == 0:
		return "–"
	case c.median:
		return s.only(c.format)
	default:
		return s.text(c.format)
	}
}

// report prints all results, as Markdown.
func (b *bench) report(w io.Writer) {
	fmt.Fprintln(w, strings.Join(b.machine, "\n"))
	b.writeRows(w, "requests/s", "÷ plain", proxyColumns, b.proxyRows)
	if l := b.latency; l != nil {
		fmt.Fprintf(w, "\nAt %s requests/s, a third of what Caddy reaches without a limit, p99 is %s without, %s with sliding_window on 1,000 keys, and %s with leases; the differences are %s and %s.\n",
			thousands(l.rate), l.plain.text(milliseconds), l.exact.text(milliseconds), l.leased.text(milliseconds), l.added.text(milliseconds), l.addedLeased.text(milliseconds))
	}
	b.writeRows(w, "decisions/s", "÷ bare upsert", coreColumns, b.coreRows)
	table := [][]string{{"target", "", "measured", ""}}
	for _, t := range b.targets() {
		table = append(table, []string{t.what, t.want, t.measured, t.outcome})
	}
	writeTable(w, table)
	for _, warning := range b.warnings() {
		fmt.Fprintf(w, "\n%s\n", warning)
	}
	fmt.Fprintf(w, "\nAll of it took %v.\n", time.Since(b.began).Round(time.Second))
}

// writeRows writes a table of the rows, if there are any.
func (b *bench) writeRows(w io.Writer, rates, ratio string, columns []column, rows []*row) {
	if len(rows) == 0 {
		return
	}
	table := [][]string{{"", rates, ratio, ratio + ", by CPU"}}
	for _, c := range columns {
		table[0] = append(table[0], c.title)
	}
	for _, r := range rows {
		line := []string{r.name, spreadOf(r.figures(rate)).text(thousands), b.ratio(r.name, r.baseline).only(places(2)), b.cpuRatio(r.name, r.baseline).text(places(2))}
		for _, c := range columns {
			line = append(line, c.cell(r))
		}
		table = append(table, line)
	}
	writeTable(w, table)
}

// writeTable writes a table in Markdown. Its first line is the head.
func writeTable(w io.Writer, table [][]string) {
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

// warnings name the requests without a decision, which make figures doubtful.
func (b *bench) warnings() []string {
	all := b.complaints
	for _, r := range b.proxyRows {
		if failed := spreadOf(r.figures(func(s sample) float64 { return s.failed })); failed.high > 0 {
			all = append(all, fmt.Sprintf("%s: in one round %s requests got no decision within %s, or no answer.", r.name, thousands(failed.high), decisionTimeout))
		}
	}
	if b.latency != nil && b.latency.refused > 0 {
		all = append(all, fmt.Sprintf("At a third of the plain throughput %d requests were not answered with 200.", b.latency.refused))
	}
	if b.memory != nil && b.memory.refused > 0 {
		all = append(all, fmt.Sprintf("Of the requests for the million keys %d were not answered with 200.", b.memory.refused))
	}
	if b.identities != nil && b.identities.refused > 0 {
		all = append(all, fmt.Sprintf("Of the requests with a million API keys %d were not answered with 200.", b.identities.refused))
	}
	if b.flood != nil && b.flood.caddy.wrong+b.flood.core.wrong > 0 {
		all = append(all, fmt.Sprintf("While invented keys were sent, %d requests through Caddy and %d without a proxy had a wrong answer.", b.flood.caddy.wrong, b.flood.core.wrong))
	}
	return all
}
