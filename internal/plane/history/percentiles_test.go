package history_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// Percentiles differ by at most 9.1 % from the exact ones, for minutes, hours and days. The durations come
// from three regions and two days, through both ways to add a record.
func TestPercentilesAreExactWithinATenth(t *testing.T) {
	d := newTestDB(t)
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]time.Duration, 20_000)
	for i := range all {
		all[i] = time.Duration(600_000 * math.Exp(random.NormFloat64())) // most take about 0.6 ms
		if random.IntN(50) == 0 {
			all[i] *= 1000
		}
		all[i] = max(all[i], 100_001)
	}
	for region := range 3 {
		w := d.newWriter(history.Settings{Region: strconv.Itoa(region)})
		for i := region; i < len(all); i += 3 {
			r := history.Record{Time: baseTime.Add(time.Duration(i%2*24) * time.Hour), Prefix: "p", Cost: 1,
				Duration: all[i], Outcome: outcome.Admitted, Charged: hits("p", 1)}
			if i%4 < 2 {
				history.Add(w, &r)
			} else {
				history.AddBatch(w, []history.Record{r})
			}
			if i%3000 < 3 {
				flush(t, w)
			}
		}
		flush(t, w)
	}
	slices.Sort(all)
	const sums = `SELECT rate_limit_percentile(rate_limit_sum(durations), %v) FROM rate_limit_traffic
		WHERE granularity = '%s' HAVING sum(requests) = 20000`
	for _, granularity := range []string{"minute", "hour", "day"} {
		for _, p := range []float64{0, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1} {
			got, err := strconv.ParseFloat(d.Query(fmt.Sprintf(sums, p, granularity)), 64)
			if err != nil {
				t.Fatal(err)
			}
			want := float64(all[max(0, int(math.Ceil(p*float64(len(all))))-1)]) / 1e6
			if got > 1.0906*want || got < want/1.0906 {
				t.Errorf("%s: p%v is %v ms, want %v ms within 9.1 %%", granularity, 100*p, got, want)
			}
		}
	}
	check.Equal(t, "the view", d.Query(`SELECT bool_and(p50_ms = rate_limit_percentile(durations, 0.5)
		AND p95_ms = rate_limit_percentile(durations, 0.95)
		AND p99_ms = rate_limit_percentile(durations, 0.99)) FROM rate_limit_traffic`), "t")
}
