package history_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// minuteSQL returns a command that adds latencies in microseconds to a minute, as a writer does.
func minuteSQL(minute, prefix, region string, latencies []float64) string {
	var buckets []int64
	for _, l := range latencies {
		bucket := history.BucketOf(time.Duration(l * 1000))
		for len(buckets) <= bucket {
			buckets = append(buckets, 0)
		}
		buckets[bucket]++
	}
	micros := "ARRAY[(extract(epoch FROM timestamptz '" + minute + "') * 1000000)::bigint]"
	call := fmt.Sprintf("region => '%s', \"time\" => %s, last_request => %[2]s, prefix => '{%s}', "+
		"requests => '{%d}', admitted => '{%[4]d}', latency => '{\"{%s}\"}'", region, micros, prefix,
		len(latencies), strings.Trim(strings.ReplaceAll(fmt.Sprint(buckets), " ", ","), "[]"))
	for _, name := range []string{"user_id", "limit_name", "endpoint"} {
		call += ", " + name + ` => '{""}'`
	}
	for _, name := range []string{"key_id", "limited", "blocked", "rejected", "overloaded", "failed",
		"shadow", "charged", "settled", "from_memory", "from_lease", "from_database"} {
		call += ", " + name + " => '{0}'"
	}
	return "SELECT rate_limit_record_metrics(" + call + ");"
}

// Percentiles are between half and twice the exact percentiles, for minutes, hours and days. The latencies
// come from three regions and two days.
func TestPercentilesAreWithinAFactorOfTwo(t *testing.T) {
	s := newHistory(t)
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]float64, 20_000)
	for i := range all {
		all[i] = 300 * math.Exp(random.NormFloat64()) // most take about 300 us, and a few take seconds
		if random.IntN(50) == 0 {
			all[i] *= 1000
		}
	}
	const perBatch = 1000
	for i := 0; i < len(all); i += perBatch {
		batch := i / perBatch
		minute := fmt.Sprintf("2026-11-%d %02d:%02d:00Z", 20+batch/3%2, batch/6%24, batch%60)
		s.Exec(minuteSQL(minute, "web", "r"+strconv.Itoa(batch%3), all[i:i+perBatch]))
	}
	slices.Sort(all)
	for _, granularity := range []string{"minute", "hour", "day"} {
		s.Expect("SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = '"+granularity+"'",
			"20000")
		for _, p := range []float64{0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1} {
			got, err := strconv.ParseFloat(
				s.Query(fmt.Sprintf("SELECT rate_limit_percentile(rate_limit_sum(latency), %v) FROM "+
					"rate_limit_metrics WHERE granularity = '%s'", p, granularity)), 64)
			if err != nil {
				t.Fatal(err)
			}
			if want := all[int(math.Ceil(p*float64(len(all))))-1] / 1000; got > 2*want || got < want/2 {
				t.Errorf("%s: p%v is %v ms, want about %v ms", granularity, 100*p, got, want)
			}
		}
	}
	s.Expect(`SELECT bool_and(p50_ms = rate_limit_percentile(latency, 0.5)
		AND p95_ms = rate_limit_percentile(latency, 0.95) AND p99_ms = rate_limit_percentile(latency, 0.99)
		AND p50_ms BETWEEN 0.15 AND 0.6) FROM rate_limit_traffic WHERE granularity = 'day'`, "t")
}
