package schema_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// bucket is the bucket of a latency in microseconds, as the documentation of rate_limit_percentile
// has it.
func bucket(microseconds float64) int {
	return max(0, min(20, int(math.Ceil(math.Log2(microseconds/100)))))
}

// array is the text of a bigint[].
func array(buckets []int64) string {
	var text []string
	for _, n := range buckets {
		text = append(text, strconv.FormatInt(n, 10))
	}
	return "{" + strings.Join(text, ",") + "}"
}

// minuteSQL adds latencies in microseconds to a minute, as a writer does.
func minuteSQL(minute, prefix, region string, latencies []float64) string {
	var buckets []int64
	for _, l := range latencies {
		for len(buckets) <= bucket(l) {
			buckets = append(buckets, 0)
		}
		buckets[bucket(l)]++
	}
	return fmt.Sprintf(`INSERT INTO rate_limit_metrics AS m (granularity, time, prefix, host, route, region, requests, allowed, latency) VALUES ('minute', '%s', '%s', 'h', '', '%s', %d, %[4]d, '%[5]s')
		ON CONFLICT (granularity, time, prefix, host, route, region) DO UPDATE SET requests = m.requests + excluded.requests, allowed = m.allowed + excluded.allowed,
		latency = rate_limit_add_buckets(m.latency, excluded.latency), updated_at = now();`, minute, prefix, region, len(latencies), array(buckets))
}

// The percentiles of known latencies, which three proxies have written within two days, are at most
// twice or half of the exact ones: of all minutes, of the hours and of the days.
func TestPercentilesOfKnownLatencies(t *testing.T) {
	s := newHistory(t)
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]float64, 20_000)
	for i := range all {
		all[i] = 300 * math.Exp(random.NormFloat64()) // most are some 300 us; a few take seconds
		if random.IntN(50) == 0 {
			all[i] *= 1000
		}
	}
	const perBatch = 1000
	for i := 0; i < len(all); i += perBatch {
		batch := i / perBatch
		minute := fmt.Sprintf("2026-11-%d %02d:%02d:00Z", 20+batch/3%2, batch/6%24, batch%60)
		s.exec(minuteSQL(minute, "web", "r"+strconv.Itoa(batch%3), all[i:i+perBatch]))
	}
	slices.Sort(all)
	s.exec("SELECT rate_limit_rollup()")
	for _, granularity := range []string{"minute", "hour", "day"} {
		s.want("SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = '"+granularity+"'", "20000")
		for _, p := range []float64{0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1} {
			got, err := strconv.ParseFloat(
				s.text(fmt.Sprintf("SELECT rate_limit_percentile(rate_limit_sum(latency), %v) FROM "+
					"rate_limit_metrics WHERE granularity = '%s'", p, granularity)), 64)
			if err != nil {
				t.Fatal(err)
			}
			if want := all[int(math.Ceil(p*float64(len(all))))-1] / 1000; got > 2*want || got < want/2 {
				t.Errorf("%s: p%v is %v ms, want about %v ms", granularity, 100*p, got, want)
			}
		}
	}
	s.want(`SELECT bool_and(p50_ms = rate_limit_percentile(latency, 0.5) AND p95_ms = rate_limit_percentile(latency, 0.95) AND p99_ms = rate_limit_percentile(latency, 0.99)
		AND p50_ms BETWEEN 0.15 AND 0.6) FROM rate_limit_traffic WHERE granularity = 'day'`, "t")
}

// Hours and days are those in UTC, series stay apart, and all columns are added.
func TestHoursAndDaysAreAddedUp(t *testing.T) {
	s := newHistory(t)
	// half an hour beside UTC
	s.exec("SET TimeZone = 'Asia/Kolkata'; SELECT rate_limit_make_partition_of('rate_limit_metrics', " +
		"'2026-11-22')")
	s.exec(`INSERT INTO rate_limit_metrics (granularity, time, prefix, host, route, region, requests, allowed, limited, blocked, rejected, errors, shadow, cost, from_memory, latency)
		SELECT 'minute', t::timestamptz, p, '', '', '', 15, 1, 2, 3, 4, 5, 6, 7, 8, l::bigint[] FROM (VALUES
		('2026-11-21 00:00Z', 'a', '{1,2}'), ('2026-11-21 00:59Z', 'a', '{10,20,30}'), ('2026-11-21 01:00Z', 'a', '{}'), ('2026-11-21 23:59Z', 'a', '{0,0,0,1}'),
		('2026-11-22 00:00Z', 'a', '{5}'), ('2026-11-21 00:30Z', 'b', '{7}')) v (t, p, l)`)
	s.want("SELECT * FROM rate_limit_rollup()", "5 3")
	const rows = `SELECT granularity, to_char(time AT TIME ZONE 'UTC', 'DD-HH24:MI'), prefix, requests, allowed, limited, blocked, rejected, errors, shadow, cost, from_memory, latency
		FROM rate_limit_metrics WHERE granularity <> 'minute' ORDER BY granularity, time, prefix`
	s.want(rows, "day 21-00:00 a 60 4 8 12 16 20 24 28 32 {11,22,30,1}\nday 21-00:00 b 15 1 2 3 4 5 6 7 8 "+
		"{7}\nday 22-00:00 a 15 1 2 3 4 5 6 7 8 {5}\n"+
		"hour 21-00:00 a 30 2 4 6 8 10 12 14 16 {11,22,30}\nhour 21-00:00 b 15 1 2 3 4 5 6 7 8 {7}\nhour "+
		"21-01:00 a 15 1 2 3 4 5 6 7 8 {}\nhour 21-23:00 a 15 1 2 3 4 5 6 7 8 {0,0,0,1}\nhour 22-00:00 a "+
		"15 1 2 3 4 5 6 7 8 {5}")

	// More comes in, and only what it changes is written.
	s.exec("UPDATE rate_limit_metrics SET limited = 9, updated_at = now() WHERE granularity = 'minute' AND " +
		"time = '2026-11-21 00:59Z'")
	s.want("SELECT * FROM rate_limit_rollup()", "1 1")
	s.want("SELECT granularity, limited FROM rate_limit_metrics WHERE prefix = 'a' AND time = "+
		"'2026-11-21Z' ORDER BY 1", "day 15\nhour 11\nminute 2")
}

// A transaction that was open during a roll-up counts in the next one.
func TestATransactionThatWasOpenCountsLater(t *testing.T) {
	s := newHistory(t)
	writer := &site{t: t, dsn: s.dsn, conn: cluster.Connect(s.t, s.dsn)}
	writer.exec("BEGIN;" + minuteSQL("2026-11-21 10:00Z", "late", "", []float64{5}))
	s.exec(minuteSQL("2026-11-21 10:00Z", "web", "", []float64{5, 6}))
	s.want("SELECT * FROM rate_limit_rollup()", "1 1")
	writer.exec("COMMIT")
	s.want("SELECT * FROM rate_limit_rollup()", "1 1")
	s.want("SELECT granularity, sum(requests) FROM rate_limit_metrics GROUP BY 1 ORDER BY 1",
		"day 3\nhour 3\nminute 3")
}

// Where minutes were deleted, an hour is never computed again, even if one more minute comes in, or
// the retention becomes longer. The same holds for days.
func TestAnHourThatHasLostMinutesStays(t *testing.T) {
	s := newHistory(t)
	s.exec(minuteSQL("2026-11-21 10:00Z", "web", "", []float64{5, 6}) + minuteSQL("2026-11-21 10:59Z", "web",
		"", []float64{7}) + minuteSQL("2026-11-21 11:00Z", "web", "", []float64{8}))
	const counts = "SELECT granularity, sum(requests) FROM rate_limit_metrics GROUP BY 1 ORDER BY 1"
	// The minutes of an hour go together, when the last of them is 7 days old.
	s.exec("SELECT rate_limit_upkeep('2026-11-28 10:59:59Z')")
	s.want(counts, "day 4\nhour 4\nminute 4")
	s.exec("SELECT rate_limit_upkeep('2026-11-28 11:00Z')")
	s.want(counts, "day 4\nhour 4\nminute 1")
	s.exec("UPDATE rate_limit_retention SET keep = '30 days' WHERE what = 'metrics_minute';" + minuteSQL(
		"2026-11-21 10:30Z", "web", "", []float64{9}))
	s.exec("SELECT rate_limit_upkeep('2026-11-28 11:00Z')")
	s.want(counts, "day 4\nhour 4\nminute 2")

	// The hours of a day go together, when the day is 90 days old.
	s.exec("SELECT rate_limit_upkeep('2027-02-19 23:59:59Z')")
	s.want(counts, "day 4\nhour 4")
	s.exec("SELECT rate_limit_upkeep('2027-02-20 00:00Z')")
	s.want(counts, "day 4")
	s.exec(minuteSQL("2026-11-21 15:00Z", "web", "", []float64{9}) + "SELECT rate_limit_rollup()")
	s.want("SELECT requests FROM rate_limit_metrics WHERE granularity = 'day'", "4")

	// A day goes when it is 7 years old.
	s.exec("SELECT rate_limit_upkeep('2033-11-21 23:59:59Z')")
	s.want(counts, "day 4")
	s.exec("SELECT rate_limit_upkeep('2033-11-22 00:00Z')")
	s.want(counts, "")
}

// Percentiles of no decisions are NULL, and a share beyond 0 and 1 is the least or the greatest.
func TestPercentilesOfFewDecisions(t *testing.T) {
	s := newHistory(t)
	for call, want := range map[string]string{
		"'{}', 0.5": "-", "'{0,0}', 0.5": "-", "NULL, 0.5": "-", "'{4}', 0.5": "0.05", "'{4}', 1": "0.1",
		"'{1,0,1}', 0.5": "0.1", "'{0,0,4}', -1": "0.25", "'{0,0,4}', 2": "0.4",
		"'{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,4}', 1":     "52428.8",
		"'{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,4}', 0.5": "52428.8",
	} {
		s.want("SELECT round(rate_limit_percentile("+call+")::numeric, 8)::float8", want)
	}
	s.want("SELECT rate_limit_sum(l) FROM (VALUES ('{1,2}'::bigint[]), (NULL), ('{}'), "+
		"('{1,1,9223372036854775000}')) v(l)", "{2,3,9223372036854775000}")
	s.want("SELECT rate_limit_sum(l) FROM (SELECT '{1}'::bigint[] AS l WHERE false) v", "{}")
}
