package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

const (
	// confidence is the approximate probability that an interval contains the result of another run.
	confidence = 0.99
	// anotherRun widens the interval of one run, because the difference of two runs has √2 times the standard
	// deviation of one.
	anotherRun = math.Sqrt2
)

// estimate is a figure with its interval. Without values, all fields are NaN. With too few values for the
// confidence, the interval is unbounded.
type estimate struct{ value, low, high float64 }

// estimateOf returns the Hodges–Lehmann estimate, which is the median of all pairwise averages, with the
// interval of Wilcoxon's signed ranks, widened for another run. Unlike a mean, it ignores the few values that
// other work on the machine disturbed.
func estimateOf(values []float64) estimate {
	n := len(values)
	if n == 0 {
		return estimate{math.NaN(), math.NaN(), math.NaN()}
	}
	var averages []float64
	for i := range values {
		for _, other := range values[:i+1] {
			averages = append(averages, (values[i]+other)/2)
		}
	}
	slices.Sort(averages)
	m := len(averages)
	e := estimate{(averages[(m-1)/2] + averages[m/2]) / 2, math.Inf(-1), math.Inf(1)}
	if k := tailCount(n); k >= 0 {
		e.low, e.high = e.value+anotherRun*(averages[k]-e.value), e.value+anotherRun*(averages[m-1-k]-e.value)
	}
	return e
}

// tailCount returns the number of pairwise averages of n values to discard at each end, or -1 if n is too
// small for the confidence.
func tailCount(n int) int {
	// ways[w] counts the sets of ranks from 1 to n with the sum w, of 2^n sets.
	ways := make([]float64, n*(n+1)/2+1)
	ways[0] = 1
	for rank := 1; rank <= n; rank++ {
		for w := len(ways) - 1; w >= rank; w-- {
			ways[w] += ways[w-rank]
		}
	}
	k := -1
	for sum := ways[0]; sum <= (1-confidence)/2*math.Exp2(float64(n)); sum += ways[k+1] {
		k++
	}
	return k
}

// ratioOf estimates the ratio of two figures, from the logarithms of their ratios in each round. a[i] and
// b[i] are the values of round i.
func ratioOf(a, b []float64) estimate {
	var logs []float64
	for i := range a {
		logs = append(logs, math.Log(a[i]/b[i]))
	}
	e := estimateOf(logs)
	return estimate{math.Exp(e.value), math.Exp(e.low), math.Exp(e.high)}
}

// differenceOf estimates the difference of two figures. a[i] and b[i] are the values of round i.
func differenceOf(a, b []float64) estimate {
	var values []float64
	for i := range a {
		values = append(values, a[i]-b[i])
	}
	return estimateOf(values)
}

// quotientWith estimates the quotient of two ratios that were measured independently, in different rounds.
func (e estimate) quotientWith(other estimate) estimate {
	up, down := math.Log(e.high/e.value), math.Log(e.value/e.low)
	otherUp, otherDown := math.Log(other.high/other.value), math.Log(other.value/other.low)
	value := e.value / other.value
	return estimate{value, value * math.Exp(-math.Hypot(down, otherUp)),
		value * math.Exp(math.Hypot(up, otherDown))}
}

func (e estimate) measured() bool { return !math.IsNaN(e.value) }

// text formats an estimate as "value (low–high)" with a number of decimal places, or as "" if it was not
// measured.
func (e estimate) text(places int) string {
	switch {
	case !e.measured():
		return ""
	case math.IsInf(e.high, 1):
		return formatNumber(e.value, places) + " (?)"
	}
	return formatNumber(e.value, places) + " (" + formatNumber(e.low, places) + "–" +
		formatNumber(e.high, places) + ")"
}

// formatNumber formats 12345.678 as 12,345.7 with a number of decimal places.
func formatNumber(v float64, places int) string {
	text := fmt.Sprintf("%.*f", places, math.Abs(v))
	whole, _, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	if v < 0 {
		text = "-" + text
	}
	return text
}
