package main

import (
	"math"
	"slices"

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

// confidence is the probability that the true median is between the lowest and the highest of so
// many rounds: that neither all rounds are above it, nor all below.
func confidence(rounds int) float64 { return 1 - 2*math.Pow(0.5, float64(rounds)) }

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

func (s spread) measured() bool { return !math.IsNaN(s.median) }

// text writes the spread as "median (low–high)", with so many decimal places.
func (s spread) text(places int) string {
	if !s.measured() {
		return "–"
	}
	return number(s.median, places) + " (" + number(s.low, places) + "–" + number(s.high, places) + ")"
}

var english = message.NewPrinter(language.English)

// number writes 12345.678 as 12,345.7, with so many decimal places.
func number(v float64, places int) string { return english.Sprintf("%.*f", places, v) }

// figures are one figure of all rounds. No row has none.
func (r *row) figures(title string) (values []float64) {
	if r == nil {
		return nil
	}
	for _, s := range r.samples {
		values = append(values, s[title])
	}
	return values
}

// than is the spread of this row's requests a second ÷ those of another row in the same round.
func (r *row) than(other *row) spread {
	return pairs(r.figures(perSecond), other.figures(perSecond), quotient)
}

// thanByCPU is what than would be if the machine had nothing else to do and no core were
// ever idle.
func (r *row) thanByCPU(other *row) spread {
	return pairs(other.figures(cpuAll), r.figures(cpuAll), quotient)
}
