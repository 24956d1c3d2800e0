package algorithm_test

import (
	"math"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// chargeInNode charges a hit like src/algorithms/token-bucket.ts of the npm library pg-ratelimit 0.3.0, which
// begins a new interval with each hit that passes.
func chargeInNode(l *ratelimit.Limit, r *algorithm.Row, now int64) int64 {
	if !r.HasTokens {
		*r = algorithm.Row{Tokens: float64(l.Burst), Refill: now, HasTokens: true}
	}
	steps := max(0, now-r.Refill) / l.Window.Microseconds()
	tokens := math.Min(r.Tokens+float64(steps*l.Events), float64(l.Burst)) - 1
	if tokens < 0 {
		return 0
	}
	r.Tokens, r.Refill = tokens, now
	return 1
}

// A token bucket that the npm library and the proxies share admits at most the limit, and fewer than the
// limit.
func TestBucketSharedWithNodeAdmitsAtMostTheLimit(t *testing.T) {
	random := seed.New(t)
	var shared, alone int64
	for range 200 {
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 1 + random.Int64N(20),
			Window: time.Duration(1+random.IntN(60)) * time.Second}
		l.Burst = l.Events + random.Int64N(20)
		demand := 0.5 + 2*random.Float64() // of the limit
		var rows [2]algorithm.Row
		start, now, admitted := int64(1e15), int64(1e15), int64(0)
		for range 2000 {
			if random.IntN(2) == 0 {
				admitted += chargeInNode(l, &rows[0], now)
			} else {
				admitted += algorithm.Of(l).Charge(l, &rows[0], now, 1, 1)
			}
			alone += algorithm.Of(l).Charge(l, &rows[1], now, 1, 1)
			if most := l.Burst + (now-start)/l.Window.Microseconds()*l.Events; admitted > most {
				t.Fatalf("%+v: %d hits passed after %d µs, want at most %d", *l, admitted, now-start, most)
			}
			gap := float64(l.Window.Microseconds()) / float64(l.Events) / demand
			now += int64(random.ExpFloat64() * gap)
		}
		shared += admitted
	}
	fewer := 100 - 100*float64(shared)/float64(alone)
	if fewer < 0 {
		t.Errorf("%.0f %% more hits passed than by one of the two", -fewer)
	}
	t.Logf("%.0f %% fewer hits passed than by one of the two", fewer)
}
