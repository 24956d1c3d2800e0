package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// spread is the median of some values, the lowest and the highest.
type spread struct {
	median, low, high float64
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// text writes the spread as "median (low–high)", each as format has it.
func (s spread) text(format func(float64) string) string {
	if math.IsNaN(s.median) {
		return "–"
	}
	return format(s.median) + " (" + format(s.low) + "–" + format(s.high) + ")"
}

// only writes the median alone.
func (s spread) only(format func(float64) string) string {
	if math.IsNaN(s.median) {
		return "–"
	}
	return format(s.median)
}

// ratioOf is the spread of a's values by b's, round by round: what disturbs a
// round disturbs both.
func ratioOf(a, b []float64) spread {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, a[i]/b[i])
	}
	return spreadOf(ratios)
}

// of is one figure of all samples.
func of[T any](samples []T, figure func(T) float64) []float64 {
	var values []float64
	for _, s := range samples {
		values = append(values, figure(s))
	}
	return values
}

func rates(samples []sample) []float64 {
	return of(samples, func(s sample) float64 { return s.rate })
}

// thousands writes a whole number as 12,345.
func thousands(v float64) string {
	digits := strconv.FormatFloat(math.Round(math.Abs(v)), 'f', 0, 64)
	var text strings.Builder
	if v <= -0.5 {
		text.WriteByte('-')
	}
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			text.WriteByte(',')
		}
		text.WriteRune(digit)
	}
	return text.String()
}

// places writes with so many decimal places.
func places(n int) func(float64) string {
	return func(v float64) string { return strconv.FormatFloat(v, 'f', n, 64) }
}

// significant writes a small number with two significant digits, a large one
// with one decimal place.
func significant(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) < 0.1:
		return strconv.FormatFloat(v, 'g', 2, 64)
	case math.Abs(v) < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func percent(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + " %" }
