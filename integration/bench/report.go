package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// report prints all that was measured, as Markdown.
func (b *bench) report(r *results) { writeReport(os.Stdout, r) }

func writeReport(w io.Writer, r *results) {
	for _, line := range r.machine {
		fmt.Fprintf(w, "%s.\n", line)
	}
	if len(r.rows) > 0 {
		fmt.Fprintln(w)
		writeTable(w, proxyTable(r))
	}
	if p := r.pace; p != nil {
		fmt.Fprintf(w, "\nAt %s requests/s, half of what Caddy manages without a limit, p99 is %s without and %s with sliding_window on 1,000 keys; the difference is %s.\n",
			thousands(p.rate), p.plain.text(milliseconds), p.limited.text(milliseconds), p.added.text(milliseconds))
	}
	if len(r.core) > 0 {
		fmt.Fprintln(w)
		writeTable(w, coreTable(r))
	}
	fmt.Fprintln(w)
	writeTable(w, targetTable(r))
	for _, note := range notes(r) {
		fmt.Fprintf(w, "\n%s\n", note)
	}
	fmt.Fprintf(w, "\nAll of it took %v.\n", r.took.Round(time.Second))
}

func proxyTable(r *results) [][]string {
	table := [][]string{{"", "requests/s", "÷ plain", "p50 ms", "p99 ms", "CPU µs/request: proxy", "store", "wrk", "statements/request", "WAL bytes/request", "refused"}}
	for _, row := range r.rows {
		figure := func(f func(s sample) float64) spread { return spreadOf(of(row.samples, f)) }
		store, statements, wal := "–", "–", "–"
		if row.proxy.counts() || row.proxy.redis {
			store = figure(func(s sample) float64 { return s.storeCPU }).text(places(1))
		}
		if row.proxy.counts() {
			statements = figure(func(s sample) float64 { return s.statements }).text(significant)
			wal = figure(func(s sample) float64 { return s.wal }).only(places(0))
		}
		table = append(table, []string{
			row.name,
			spreadOf(rates(row.samples)).text(thousands),
			ratioOf(rates(row.samples), r.rates(row.plain)).only(places(2)),
			figure(func(s sample) float64 { return s.p50 }).text(places(2)),
			figure(func(s sample) float64 { return s.p99 }).text(places(2)),
			figure(func(s sample) float64 { return s.proxyCPU }).text(places(1)),
			store,
			figure(func(s sample) float64 { return s.loadCPU }).only(places(1)),
			statements, wal,
			figure(func(s sample) float64 { return s.refused }).only(percent),
		})
	}
	return table
}

func coreTable(r *results) [][]string {
	table := [][]string{{"", "decisions/s", "÷ bare upsert", "CPU µs/decision: client", "Postgres", "decisions/statement"}}
	for _, row := range r.core {
		figure := func(f func(s coreSample) float64) spread { return spreadOf(of(row.samples, f)) }
		table = append(table, []string{
			row.name,
			spreadOf(coreRates(row.samples)).text(thousands),
			row.ratio(r).only(places(2)),
			figure(func(s coreSample) float64 { return s.clientCPU }).text(places(2)),
			figure(func(s coreSample) float64 { return s.storeCPU }).text(places(2)),
			figure(func(s coreSample) float64 { return s.batch }).text(places(1)),
		})
	}
	return table
}

func targetTable(r *results) [][]string {
	table := [][]string{{"target", "", "measured", ""}}
	for _, t := range targets(r) {
		table = append(table, []string{t.what, t.want, t.value, t.state.String()})
	}
	return table
}

// notes are what spoils a figure.
func notes(r *results) []string {
	var all []string
	for _, row := range r.rows {
		failed := 0.0
		for _, s := range row.samples {
			failed += float64(s.failed)
		}
		if failed > 0 {
			all = append(all, fmt.Sprintf("%s: %s requests got no decision within %s, or no answer.", row.name, thousands(failed), decisionTimeout))
		}
	}
	if r.pace != nil && r.pace.late > 0 {
		all = append(all, fmt.Sprintf("At half of the plain throughput %s requests were not answered with 200.", thousands(float64(r.pace.late))))
	}
	if r.memory != nil && r.memory.failed > 0 {
		all = append(all, fmt.Sprintf("As the million keys were sent, %s requests were not answered with 200.", thousands(float64(r.memory.failed))))
	}
	return append(all, r.complaints...)
}

// writeTable writes a table in Markdown, its columns aligned. All but the first
// column are set right.
func writeTable(w io.Writer, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, line := range table {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	write := func(line []string) {
		for i, cell := range line {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				fmt.Fprint(w, "| ", cell, space, " |")
			} else {
				fmt.Fprint(w, " ", space, cell, " |")
			}
		}
		fmt.Fprintln(w)
	}
	write(table[0])
	fmt.Fprint(w, "|", strings.Repeat("-", widths[0]+2), "|")
	for _, width := range widths[1:] {
		fmt.Fprint(w, strings.Repeat("-", width+1), ":|")
	}
	fmt.Fprintln(w)
	for _, line := range table[1:] {
		write(line)
	}
}
