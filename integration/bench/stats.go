package main

import (
	"math"
	"slices"
	"strconv"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// spread is the median of some values, the lowest and the highest. All are NaN if
// there are no values.
type spread struct {
	median, low, high float64
}

func spreadOf(values []float64) spread {
	n := len(values)
	if n == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(values))
	return spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// pairs is the spread of what f makes of two values of each round. A ratio of the
// same round is not disturbed by what disturbs both values.
func pairs(a, b []float64, f func(a, b float64) float64) spread {
	var values []float64
	for i := range min(len(a), len(b)) {
		values = append(values, f(a[i], b[i]))
	}
	return spreadOf(values)
}

func difference(a, b float64) float64 { return a - b }

func quotient(a, b float64) float64 { return a / b }

// format writes a number.
type format func(float64) string

// text writes the spread as "median (low–high)".
func (s spread) text(f format) string {
	if math.IsNaN(s.median) {
		return "–"
	}
	return f(s.median) + " (" + f(s.low) + "–" + f(s.high) + ")"
}

// only writes the median.
func (s spread) only(f format) string {
	if math.IsNaN(s.median) {
		return "–"
	}
	return f(s.median)
}

// figures are one figure of all rounds.
func (r *row) figures(figure func(sample) float64) (values []float64) {
	for _, s := range r.samples {
		values = append(values, figure(s))
	}
	return values
}

func rate(s sample) float64 { return s.rate }

// cpu is the processor time of a request in all processes, in microseconds.
func cpu(s sample) float64 { return s.clientCPU + s.storeCPU + s.wrkCPU }

// of is a figure of the row of this name in each round, or nothing if the row was not
// measured.
func (b *bench) of(name string, figure func(sample) float64) []float64 {
	for _, row := range slices.Concat(b.proxyRows, b.coreRows) {
		if row.name == name {
			return row.figures(figure)
		}
	}
	return nil
}

// rates are those of the row of this name.
func (b *bench) rates(name string) []float64 { return b.of(name, rate) }

// ratio compares the rates of two rows.
func (b *bench) ratio(name, baseline string) spread {
	return pairs(b.rates(name), b.rates(baseline), quotient)
}

// cpuRatio compares the processor times of two rows: what ratio would be if the machine had
// nothing else to do and no core were ever idle.
func (b *bench) cpuRatio(name, baseline string) spread {
	return pairs(b.of(baseline, cpu), b.of(name, cpu), quotient)
}

var english = message.NewPrinter(language.English)

// thousands writes a whole number as 12,345.
func thousands(v float64) string { return english.Sprintf("%.0f", v) }

// places writes with so many decimal places.
func places(n int) format {
	return func(v float64) string { return strconv.FormatFloat(v, 'f', n, 64) }
}

func percent(v float64) string { return places(1)(100*v) + " %" }

func milliseconds(v float64) string { return places(2)(v) + " ms" }
