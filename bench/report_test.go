package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// someResults are results of all rows: in each proxy, each limiter takes a tenth more than the one before.
func someResults(t *testing.T) *bench {
	b := newBench(t.Context())
	b.rounds, b.rows = fewest, allRows()
	cost := 100.0
	for _, r := range b.rows {
		if r.base == nil {
			cost = 100
			continue
		}
		cost *= 1.1
		control := *r.base
		control.samples = nil
		r.control = &control
		for round := range fewest {
			noise := 1 + 0.01*float64(round)
			r.samples = append(r.samples, sample{cpuAll: cost * noise, cpuProxy: cost * noise * 0.75, cpuStore: cost * noise * 0.25, perSecond: 1e6 / cost, medianMs: 1, p99Ms: 3})
			control.samples = append(control.samples, sample{cpuAll: 100 * noise, cpuProxy: 100 * noise, perSecond: 12345, medianMs: 1, p99Ms: 2})
		}
		if r.base.base == nil {
			r.base.samples = append(r.base.samples, control.samples...)
		}
	}
	b.figures = [][]string{{"bytes", "220"}}
	return b
}

// named is the row of this name.
func named(b *bench, name string) *row {
	return b.rows[slices.IndexFunc(b.rows, func(r *row) bool { return r.name == name })]
}

func TestReportHasEveryRowWithIntervals(t *testing.T) {
	b := someResults(t)
	named(b, "Caddy + leased").wrong = 7
	for round, s := range named(b, "Traefik + leased").samples {
		s[cpuAll] *= 1 + 0.2*float64(round%3)
	}
	text := narrow(b.results([]string{"-docs", "../docs"}))
	for _, r := range b.rows {
		if !strings.Contains(text, "\n|"+r.name) {
			t.Errorf("no row %s", r.name)
		}
	}
	for _, want := range []string{
		"`make bench` on ",
		"take 3.4 (3.3–3.6) % of a core more with an exact limit",
		"takes 1.10 (1.10–1.10) times the CPU of redis_rate",
		"\n|Caddy plain|103.5 (",
		"\n|Caddy + exact|103.3 (98.4–108.3)|34.4 (32.8–36.1)|1.33 (1.33–1.33)|1.21 (1.21–1.21)|1.10 (1.10–1.10)|7,513 (7,513–7,513)|\n",
		"\n|Caddy + gcra|",
		"\n|Traefik + leased \\*|",
		"\n\\* An interval of a ratio is wider than ±5 % even after 24 rounds.\n",
		"\n|Caddy + exact, paced|1.00 (1.00–1.00)|0.00 (0.00–0.00)|3.00 (3.00–3.00)|1.00 (1.00–1.00)|\n",
		"\n|bytes|220|\n",
		"\nCaddy + leased: 7 requests had a wrong answer, or none.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestVerdictOnTheVersionBefore: worse is only what is worse by more than 3 % beyond doubt.
func TestVerdictOnTheVersionBefore(t *testing.T) {
	b := newBench(t.Context())
	b.rounds, b.before = fewest, "abc"
	b.rows = besideBefore(allRows())[:3]
	for i, r := range b.rows {
		r.control = r.base
		for round := range fewest {
			noise := 1 + 0.01*float64(round%3)
			r.samples = append(r.samples, sample{cpuAll: []float64{100, 102, 108}[i] * noise})
			r.base.samples = append(r.base.samples, sample{cpuAll: 100})
		}
	}
	text := narrow(b.results([]string{"-before", "abc"}))
	for _, want := range []string{"`make bench BEFORE=abc` on ", "|Caddy + exact|101.0 (99.6–102.4)|100.0 (100.0–100.0)|1.0 (-0.4–2.4)|1.010 (0.996–1.024)|yes|", "|Caddy + leased|", "|Caddy + policy|109.1 (107.6–110.6)|100.0 (100.0–100.0)|9.1 (7.6–10.6)|1.091 (1.076–1.106)|NO|"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestDocsGetTheResults(t *testing.T) {
	b := someResults(t)
	b.complain("Left out: a row: no redis-server on this machine\nand more")
	folder := t.TempDir()
	page := filepath.Join(folder, "performance.md")
	check(os.WriteFile(page, []byte("# Performance\n"+resultsBegin+"yesterday's\n"+resultsEnd+"## Next\n"), 0o644))
	for range 2 {
		if err := b.writeDocs(folder, []string{"-docs", folder, "-only", "^(a|b)$"}); err != nil {
			t.Fatal(err)
		}
	}
	text := string(must(os.ReadFile(page)))
	if !strings.HasPrefix(text, "# Performance\n"+resultsBegin) || !strings.HasSuffix(text, resultsEnd+"## Next\n") || strings.Contains(text, "yesterday") {
		t.Errorf("the page is\n%s", text)
	}
	for _, want := range []string{"`make bench BENCHFLAGS=\"-docs " + folder + " -only '^(a|b)$$'\"` on ", "\n|Caddy + exact|", "\nLeft out: a row: no redis-server on this machine\n\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if svg := string(must(os.ReadFile(filepath.Join(folder, "benchmark.svg")))); !strings.HasSuffix(svg, "</svg>\n") {
		t.Error("no picture")
	}
	check(os.WriteFile(page, []byte("# Performance\n"), 0o644))
	if err := b.writeDocs(folder, nil); err == nil {
		t.Error("no error for a page without a place for the results")
	}
}
