package algorithm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// estimates compares the decisions of a sliding window with exact counts, as percentages of the requests.
type estimates struct {
	right, passed, refused float64 // decided right, and passed or refused in error
	total                  float64 // the number of requests that pass, of those that pass a sliding_log
	most                   int     // the largest number that passed within the length of one window
}

// estimate sends n requests of one key, with the given gaps in microseconds, to a sliding window.
func estimate(events, n int, gap func() float64) (e estimates) {
	window := &ratelimit.Limit{Prefix: "p", Events: int64(events), Window: time.Minute}
	log := *window
	log.Algorithm = ratelimit.SlidingLog
	var row, logRow algorithm.Row
	var times []int64 // the requests that passed within the last minute
	now, passed, exact := 1e15, 0, 0.0
	for range n {
		now += gap()
		at := int64(now)
		for len(times) > 0 && times[0] <= at-window.Window.Microseconds() {
			times = times[1:]
		}
		passes := algorithm.Of(window).Charge(window, &row, at, 1, 1) == 1
		switch {
		case passes && len(times) >= events:
			e.passed++
		case !passes && len(times) < events:
			e.refused++
		}
		if passes {
			times = append(times, at)
			passed++
		}
		e.most = max(e.most, len(times))
		exact += float64(algorithm.Of(&log).Charge(&log, &logRow, at, 1, 1))
	}
	e.passed, e.refused = 100*e.passed/float64(n), 100*e.refused/float64(n)
	e.right, e.total = 100-e.passed-e.refused, 100*float64(passed)/exact
	return e
}

// A sliding window estimates, and docs/generated/algorithms.md says how well, for requests that come at
// random or in bursts.
func TestSlidingWindowIsNearlyExact(t *testing.T) {
	const events, n = 100, 100000
	table := "| requests | wanted | decided right | passed in error | refused in error | passed in all | " +
		"most in a minute |\n|---|---|---|---|---|---|---|\n"
	for _, burst := range []int{1, 10, 50} {
		for _, demand := range []float64{0.5, 0.8, 1, 1.5, 3} {
			random := rand.New(rand.NewPCG(1, uint64(10*demand)))
			mean := 60e6 / events / demand * float64(burst)
			sent := 0
			e := estimate(events, n, func() float64 {
				if sent++; sent%burst != 0 {
					return 1000
				}
				return random.ExpFloat64() * mean
			})
			name := "at random (Poisson)"
			if burst > 1 {
				name = fmt.Sprintf("in bursts of %d", burst)
			}
			table += fmt.Sprintf("| %s | %.0f %% | %.2f %% | %.2f %% | %.2f %% | %.1f %% | %d |\n", name,
				demand*100, e.right, e.passed, e.refused, e.total, e.most)
		}
	}
	golden.CheckPart(t, "../../../docs/generated/algorithms.md", "go test ./internal/core/algorithm",
		"\n"+table+"\n")
}
