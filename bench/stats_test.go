package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestLeftOut compares with the table of Wilcoxon's signed ranks for two sides and 1 %.
func TestLeftOut(t *testing.T) {
	for n, want := range map[int]int{1: -1, 7: -1, 8: 0, 10: 3, 12: 7, 20: 37, 36: 171} {
		if found := leftOut(n); found != want {
			t.Errorf("%d values: %d, want %d", n, found, want)
		}
	}
	if e := estimateOf(make([]float64, fewest-1)); !math.IsInf(e.low, -1) || e.text(1) != "0.0 (?)" {
		t.Errorf("of too few values: %v", e)
	}
	if e := estimateOf(make([]float64, fewest)); e != (estimate{}) {
		t.Errorf("of equal values: %v", e)
	}
	if e := estimateOf(nil); e.measured() || e.text(1) != "" {
		t.Errorf("of no values: %v", e)
	}
}

// TestIntervalsHoldTheTruth, although each tenth round is disturbed by a factor of up to three, and
// also hold the estimate of a second run, about as often as the reports say.
func TestIntervalsHoldTheTruth(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const runs, truth = 2000, 1.5
	run := func() estimate {
		var row, control []float64
		for range 12 {
			disturbance := func() float64 {
				if random.Float64() < 0.1 {
					return 1 + 2*random.Float64()
				}
				return math.Exp(0.05 * random.NormFloat64())
			}
			row, control = append(row, truth*disturbance()), append(control, disturbance())
		}
		return ratioOf(row, control)
	}
	held, again, width := 0, 0, 0.0
	for range runs {
		first, second := run(), run()
		if first.low <= truth && truth <= first.high {
			held++
		}
		if first.low <= second.value && second.value <= first.high {
			again++
		}
		width += math.Sqrt(first.high/first.low) / runs
	}
	if held < runs*98/100 || again < runs*97/100 || width > 1.6 {
		t.Errorf("of %d intervals, ±%.0f %% on average, %d hold the truth and %d a second estimate", runs, 100*(width-1), held, again)
	}
}
