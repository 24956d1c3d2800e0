package schema_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
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
	return recordSQL(region, minute, map[string]string{"prefix": prefix, "requests": strconv.Itoa(len(latencies)),
		"allowed": strconv.Itoa(len(latencies)), "latency": array(buckets)})
}

// recordSQL is the call of a writer that adds a row to the metrics, with 0 or nothing for what is left out.
func recordSQL(region, minute string, values map[string]string) string {
	micros := "(extract(epoch FROM timestamptz '" + minute + "') * 1000000)::bigint"
	call := fmt.Sprintf(`region => '%s', "time" => ARRAY[%s], last_request => ARRAY[%[2]s]`, region, micros)
	for name, unset := range map[string]string{"user_id": "", "key_id": "0", "prefix": "", "limit_name": "",
		"endpoint": "", "requests": "0", "allowed": "0", "limited": "0", "blocked": "0", "rejected": "0",
		"shadow": "0", "errors": "0", "charged": "0", "settled": "0", "from_memory": "0", "from_lease": "0",
		"from_database": "0", "latency": "{}"} {
		value, set := values[name]
		if !set {
			value = unset
		}
		if unset == "" || unset == "{}" {
			call += fmt.Sprintf(", %s => ARRAY['%s']", name, value)
		} else {
			call += fmt.Sprintf(", %s => ARRAY[%s]::bigint[]", name, value)
		}
	}
	return "SELECT rate_limit_record_metrics(" + call + ");"
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

// Hours and days are those in UTC, rows stay apart, and all columns are added.
func TestMinutesHoursAndDaysAreAddedUp(t *testing.T) {
	s := newHistory(t)
	s.exec("SET TimeZone = 'Asia/Kolkata'") // half an hour beside UTC
	numbers := map[string]string{"requests": "15", "allowed": "1", "limited": "2", "blocked": "3",
		"rejected": "4", "errors": "5", "shadow": "6", "charged": "7", "settled": "8", "from_memory": "9",
		"from_lease": "10", "from_database": "11"}
	for _, row := range [][3]string{{"2026-11-21 00:00Z", "a", "{1,2}"}, {"2026-11-21 00:59Z", "a", "{10,20,30}"},
		{"2026-11-21 01:00Z", "a", "{}"}, {"2026-11-21 23:59Z", "a", "{0,0,0,1}"},
		{"2026-11-22 00:00Z", "a", "{5}"}, {"2026-11-21 00:30Z", "b", "{7}"}} {
		numbers["prefix"], numbers["latency"] = row[1], row[2]
		s.exec(recordSQL("", row[0], numbers))
	}
	s.want(`SELECT granularity, to_char(time AT TIME ZONE 'UTC', 'DD-HH24:MI'), prefix, requests, allowed,
		limited, blocked, rejected, errors, shadow, charged, settled, from_memory, from_lease, from_database, latency
		FROM rate_limit_metrics WHERE granularity <> 'minute' ORDER BY granularity, time, prefix`,
		"day 21-00:00 a 60 4 8 12 16 20 24 28 32 36 40 44 {11,22,30,1}\n"+
			"day 21-00:00 b 15 1 2 3 4 5 6 7 8 9 10 11 {7}\n"+
			"day 22-00:00 a 15 1 2 3 4 5 6 7 8 9 10 11 {5}\n"+
			"hour 21-00:00 a 30 2 4 6 8 10 12 14 16 18 20 22 {11,22,30}\n"+
			"hour 21-00:00 b 15 1 2 3 4 5 6 7 8 9 10 11 {7}\n"+
			"hour 21-01:00 a 15 1 2 3 4 5 6 7 8 9 10 11 {}\n"+
			"hour 21-23:00 a 15 1 2 3 4 5 6 7 8 9 10 11 {0,0,0,1}\n"+
			"hour 22-00:00 a 15 1 2 3 4 5 6 7 8 9 10 11 {5}")
	s.want("SELECT count(*), sum(requests) FROM rate_limit_metrics_minute", "6 90")
}

// Users, keys, limits, endpoints and regions are rows of their own.
func TestEachCombinationIsARow(t *testing.T) {
	s := newHistory(t)
	for name, value := range map[string]string{"user_id": "ann", "key_id": "7", "prefix": "rule/a",
		"limit_name": "per_hour", "endpoint": "/a/*", "requests": "1"} {
		for range 2 {
			s.exec(recordSQL("", "2026-11-21 10:00Z", map[string]string{name: value, "requests": "1"}) +
				recordSQL("eu", "2026-11-21 10:00Z", map[string]string{name: value, "requests": "1"}))
		}
	}
	s.want("SELECT granularity, count(*), min(requests), max(requests) FROM rate_limit_metrics GROUP BY 1 ORDER BY 1",
		"day 12 2 2\nhour 12 2 2\nminute 12 2 2")
}

// Minutes are kept for 7 days, hours for 90 days, and days for 7 years.
func TestMetricsAreKeptByGranularity(t *testing.T) {
	s := newHistory(t)
	s.exec(minuteSQL("2026-11-21 10:00Z", "web", "", []float64{5, 6}))
	const counts = "SELECT granularity, sum(requests) FROM rate_limit_metrics GROUP BY 1 ORDER BY 1"
	for _, c := range [][2]string{
		{"2026-11-28 23:59:59Z", "day 2\nhour 2\nminute 2"},
		{"2026-11-29 00:00Z", "day 2\nhour 2"},
		{"2027-02-19 23:59:59Z", "day 2\nhour 2"},
		{"2027-02-20 00:00Z", "day 2"},
		{"2033-11-21 23:59:59Z", "day 2"},
		{"2033-11-22 00:00Z", ""},
	} {
		s.exec("SELECT rate_limit_upkeep('" + c[0] + "'); SELECT rate_limit_drop_expired('" + c[0] + "')")
		if got := s.text(counts); got != c[1] {
			t.Errorf("at %s: %s, want %s", c[0], got, c[1])
		}
	}
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
