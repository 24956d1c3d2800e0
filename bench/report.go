package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// results returns all tables as Markdown, after the command that measured them.
func (b *bench) results(args []string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "`%s` on %s.\n", shellCommand(args), b.describeMachine())
	fmt.Fprintf(&out, "At least %d rounds. In each, a row and its baseline alternate, %d turns of %v each. "+
		"Brackets give the interval that contains the result of another run with a probability of about "+
		"%.0f %%. Ratios compare CPU, proxy and store together.\n",
		b.rounds, turnsPerRound, b.turn, 100*confidence)
	if b.baseCommit != "" {
		b.reportBefore(&out)
	} else {
		for _, line := range b.meaning() {
			fmt.Fprintf(&out, "%s\n", line)
		}
		b.reportRows(&out)
		b.reportLatency(&out)
	}
	writeTable(&out, append([][]string{{"figure", ""}}, b.figures...))
	for _, r := range b.rows {
		b.reportWrong(r.wrong, r.name)
	}
	for _, complaint := range b.complaints {
		first, _, _ := strings.Cut(complaint, "\n")
		fmt.Fprintf(&out, "\n%s\n", first)
	}
	return out.String()
}

// reportRows writes the table of the rows with measured CPU.
func (b *bench) reportRows(w io.Writer) {
	table := [][]string{{"", "CPU µs/request: proxy", "store", "÷ no limit, or another row", "÷ in memory",
		"÷ on Redis", perSecond, walBytes}}
	for _, r := range b.rows {
		if r.load.rate > 0 {
			continue
		}
		ratio := r.ratio().text(2)
		if r.base != nil && r.base.base != nil {
			ratio += " of " + r.base.name
		}
		table = append(table, []string{
			r.nameWithMark(), r.figure(cpuProxy).text(1), r.figure(cpuStore).text(1), ratio,
			r.ratioTo(r.memory).text(2), r.ratioTo(r.redis).text(2),
			r.figure(perSecond).text(0), r.figure(walBytes).text(0),
		})
	}
	writeTable(w, table)
	b.explainMark(w)
}

// ratioTo estimates the ratio of the row's CPU to a peer's CPU, as the quotient of the ratios of both to
// their common base. If peer is nil, the estimate has no value.
func (r *row) ratioTo(peer *row) estimate {
	if peer == nil {
		return estimateOf(nil)
	}
	return r.ratio().quotientWith(peer.ratio())
}

// nameWithMark returns the row's name, with a mark if its ratio has a wide interval.
func (r *row) nameWithMark() string {
	if r.hasWideInterval() {
		return r.name + " \\*"
	}
	return r.name
}

func (b *bench) explainMark(w io.Writer) {
	if slices.ContainsFunc(b.rows, (*row).hasWideInterval) {
		fmt.Fprintf(w, "\n\\* An interval of a ratio is wider than ±5 %% even after %d rounds.\n", 3*b.rounds)
	}
}

// reportLatency writes the table of the rows with a paced load.
func (b *bench) reportLatency(w io.Writer) {
	table := [][]string{{fmt.Sprintf("%d requests/s, from when each was due", paced.rate), medianMs,
		"more than without a limit", p99Ms, "more than without a limit"}}
	for _, r := range b.rows {
		if r.load.rate > 0 {
			table = append(table, []string{r.name, r.figure(medianMs).text(2),
				r.difference(medianMs).text(2), r.figure(p99Ms).text(2), r.difference(p99Ms).text(2)})
		}
	}
	writeTable(w, table)
}

// reportBefore writes the table that compares rows with the base version.
func (b *bench) reportBefore(w io.Writer) {
	table := [][]string{{"CPU µs/request", "now", "before", "more", "÷ before",
		fmt.Sprintf("no worse than %.2f", maxLowerRatio)}}
	for _, r := range b.rows {
		ratio := r.ratio()
		verdict := "yes"
		if ratio.low > maxLowerRatio {
			verdict = "NO"
		}
		table = append(table, []string{r.nameWithMark(), r.figure(cpuAll).text(1),
			r.control.figure(cpuAll).text(1), r.difference(cpuAll).text(1), ratio.text(3), verdict})
	}
	writeTable(w, table)
	b.explainMark(w)
}

// meaning returns two sentences that explain the figures to a user, or nil if the rows that the sentences
// compare were not measured.
func (b *bench) meaning() []string {
	rowNamed := func(name string) *row {
		i := slices.IndexFunc(b.rows, func(r *row) bool { return r.name == name })
		if i < 0 {
			return &row{}
		}
		return b.rows[i]
	}
	exact, leased := rowNamed("Caddy + exact"), rowNamed("Caddy + leased")
	redis := exact.ratioTo(exact.redis)
	if !redis.measured() || !leased.ratio().measured() {
		return nil
	}
	// At 1,000 requests/s, a microsecond for each request is a thousandth of a core.
	percent := func(r *row) string {
		e := r.difference(cpuAll)
		return estimate{e.value / 10, e.low / 10, e.high / 10}.text(1) + " %"
	}
	return []string{
		fmt.Sprintf("1,000 requests/s in Caddy take %s of a core more with an exact limit, and %s with a "+
			"leased one.", percent(exact), percent(leased)),
		fmt.Sprintf("An exact limit takes %s times the CPU of redis_rate with its Redis, and a leased one "+
			"%s times.", redis.text(2), leased.ratioTo(leased.redis).text(2)),
	}
}

// writeTable writes a table in Markdown without its empty columns. A table with only its head
// is not written.
func writeTable(w io.Writer, table [][]string) {
	if len(table) == 1 {
		return
	}
	for i := len(table[0]) - 1; i > 0; i-- {
		if !slices.ContainsFunc(table[1:], func(line []string) bool { return line[i] != "" }) {
			for j := range table {
				table[j] = slices.Delete(slices.Clone(table[j]), i, i+1)
			}
		}
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

// narrow returns Markdown without the spaces that align its columns, and with lines of 110 characters outside
// tables.
func narrow(text string) string {
	var out strings.Builder
	for line := range strings.Lines(regexp.MustCompile(` *(\|) *`).ReplaceAllString(text, "$1")) {
		length := 0
		for i, word := range strings.Split(line, " ") {
			n := utf8.RuneCountInString(word)
			switch {
			case i == 0:
			case length+1+n > 110 && line[0] != '|':
				out.WriteString("\n")
				length = 0
			default:
				out.WriteString(" ")
				length++
			}
			out.WriteString(word)
			length += n
		}
	}
	return out.String()
}
