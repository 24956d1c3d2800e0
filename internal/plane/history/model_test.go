package history_test

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// model holds the sums that the tables must have.
type model struct {
	audit   map[string]int64 // records by the columns of their row
	metrics map[string]*metricSums
	records int64
}

// metricSums has the sums of a row of rate_limit_metrics, in the order of the columns in model.check.
type metricSums struct {
	requests                            int64
	outcomes                            [outcome.Failed + 1]int64
	shadow                              int64
	fromMemory, fromLease, fromDatabase int64
	latencies                           int64
	settled                             int64
}

func (s *metricSums) String() string {
	return strings.NewReplacer("{", "", "[", "", "]", "", "}", "").Replace(fmt.Sprint(*s))
}

// sums returns the sums of a row, which is new at first.
func (m *model) sums(key string) *metricSums {
	if m.metrics[key] == nil {
		m.metrics[key] = new(metricSums)
	}
	return m.metrics[key]
}

// add adds a record. The texts of r must neither be empty nor have spaces, because keys join them with
// spaces.
func (m *model) add(r *history.Record) {
	at := r.Time.UTC()
	if r.Audit.Level == option.AuditAll || r.Audit.Level == option.AuditDenied &&
		r.Outcome != outcome.Admitted {
		m.records++
		m.audit[fmt.Sprint(at.Format("20060102150405"), " ", r.Outcome, " ", r.Shadow, " ", r.Prefix, " ",
			r.Key, " ", r.User, " ", r.Cost)]++
	}
	passed := r.Status == 0 && !r.Shadow
	for granularity, layout := range map[string]string{"minute": "200601021504", "hour": "2006010215",
		"day": "20060102"} {
		sums := func(prefix string) *metricSums {
			return m.sums(fmt.Sprint(granularity, " ", at.Format(layout), " ", r.User, " ", r.KeyID, " ",
				prefix, " ", r.Endpoint))
		}
		s := sums(r.Prefix)
		if r.Shadow {
			s.shadow++
			continue
		}
		s.outcomes[r.Outcome]++
		s.requests++
		s.latencies++
		switch {
		case r.Source == ratelimit.FromRemembered && r.Outcome == outcome.Limited:
			s.fromMemory++
		case r.Source == ratelimit.FromLease && passed:
			s.fromLease++
		case r.Source == ratelimit.FromPostgres && r.Quota > 0:
			s.fromDatabase++
		}
		for i, h := range r.Charged {
			if passed && h.Cost > 0 {
				s := sums(h.Limit.Prefix)
				s.settled += h.Cost
				if len(r.CostPending) > i && r.CostPending[i] {
					s.settled += 7
				}
			}
		}
	}
}

// formatSums returns the sums as sorted lines.
func formatSums[S any](sums map[string]S) string {
	var lines []string
	for key, sum := range sums {
		lines = append(lines, fmt.Sprint(key, " ", sum))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func sorted(table string) string {
	lines := strings.Split(table, "\n")
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// check compares the tables with the model.
func (m *model) check(t testing.TB, d *testDB) {
	t.Helper()
	check.Equal(t, "audit", sorted(d.Query(`SELECT to_char(time, 'YYYYMMDDHH24MISS'), outcome,
		shadow::text, concat_ws('/', prefix, limit_name), key,
		coalesce(user_id, '-'), cost, sum(count)::bigint FROM rate_limit_audit
		GROUP BY 1, 2, 3, 4, 5, 6, 7`)), formatSums(m.audit))
	check.Equal(t, "metrics", sorted(d.Query(`SELECT granularity, to_char(time, CASE granularity
			WHEN 'minute' THEN 'YYYYMMDDHH24MI' WHEN 'hour' THEN 'YYYYMMDDHH24' ELSE 'YYYYMMDD' END),
		coalesce(nullif(user_id, ''), '-'), key_id, prefix || coalesce('/' || nullif(limit_name, ''), ''),
		endpoint, requests, admitted, limited, blocked, rejected, overloaded, failed, shadow, from_memory,
		from_lease, from_database, coalesce((SELECT sum(l) FROM unnest(durations) l), 0)::bigint, settled
		FROM rate_limit_metrics`)), formatSums(m.metrics))
}

func (d *testDB) truncateAll() {
	d.t.Helper()
	d.Exec("TRUNCATE rate_limit_audit, rate_limit_metrics, rate_limit_writers")
}

// drawRecord draws a record near the end of a day, with an outcome up to last.
func drawRecord(t *rapid.T, last outcome.Kind) history.Record {
	r := history.Record{
		Time: time.Date(2026, 12, 31, 23, 59, 58, 0, time.UTC).Add(
			time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond),
		Outcome:  outcome.Kind(rapid.IntRange(0, int(last)).Draw(t, "outcome")),
		Prefix:   rapid.SampledFrom([]string{"p", "rule/q/l"}).Draw(t, "prefix"),
		Key:      rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key"),
		User:     rapid.SampledFrom([]string{"anna", "ben", ""}).Draw(t, "user"),
		KeyID:    int64(rapid.IntRange(0, 1).Draw(t, "key id")),
		Endpoint: rapid.SampledFrom([]string{"r", "s"}).Draw(t, "endpoint"),
		Cost:     int64(rapid.IntRange(0, 2).Draw(t, "cost")),
		Quota:    int64(rapid.IntRange(0, 1).Draw(t, "quota")),
		Duration: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "duration")),
		Source: rapid.SampledFrom([]ratelimit.Source{ratelimit.FromPostgres, ratelimit.FromRemembered,
			ratelimit.FromLease}).Draw(t, "source"),
		Audit: option.Audit{Level: rapid.SampledFrom(
			[]option.Level{option.AuditOff, option.AuditDenied, option.AuditAll}).Draw(t, "level")},
	}
	switch {
	case r.Outcome == outcome.Admitted, r.Outcome >= outcome.Overloaded && rapid.Bool().Draw(t, "passed"):
	case last == outcome.Failed && r.Outcome < outcome.Rejected && rapid.Bool().Draw(t, "shadow"):
		r.Shadow = true
	default:
		r.Status = 429
	}
	r.Charged = hits(r.Prefix, int(r.Cost))
	if rapid.Bool().Draw(t, "several") {
		r.Charged = append(r.Charged, hits("rule/tokens/m", 5)...)
	}
	return r
}

// settle settles some hits of a record, to 7 units more than their charge.
func settle(t *rapid.T, w *history.Writer, r *history.Record) {
	for i, h := range r.Charged {
		if h.Cost == 0 || !rapid.Bool().Draw(t, "settled") {
			continue
		}
		if r.CostPending == nil {
			r.CostPending = make([]bool, len(r.Charged))
		}
		r.CostPending[i] = true
		if r.Status == 0 && !r.Shadow {
			history.SetCost(w, &history.RealCost{Time: r.Time, User: r.User, KeyID: r.KeyID,
				Prefix: h.Limit.Prefix, Endpoint: r.Endpoint, Units: h.Cost + 7})
		}
	}
}

// addRecords adds records in one of two ways: a single record with Add, or several of the same time with
// AddBatch, as the interpreted plugin does.
func addRecords(t *rapid.T, w *history.Writer) []history.Record {
	records := []history.Record{drawRecord(t, outcome.Failed)}
	first := &records[0]
	if first.Outcome > outcome.Limited || first.Shadow || first.Audit.Level == option.AuditAll {
		settle(t, w, &records[0])
		history.Add(w, &records[0])
		return records
	}
	for range rapid.IntRange(0, 4).Draw(t, "more") {
		r := drawRecord(t, outcome.Limited)
		r.Time, r.Audit = records[0].Time, records[0].Audit
		records = append(records, r)
	}
	for _, i := range history.AddBatch(w, records) {
		history.Add(w, &records[i])
	}
	return records
}

// After two Writers have recorded random requests around midnight, and have merged equal refusals, the sums
// in the tables equal those of a model.
func TestTablesAddUpToRequests(t *testing.T) {
	d := newTestDB(t)
	rapid.Check(t, func(rt *rapid.T) {
		writers := []*history.Writer{d.newWriter(history.Settings{}),
			d.newWriter(history.Settings{Node: "n2"})}
		defer writers[0].Close()
		defer writers[1].Close()
		flush(t, writers[0]) // creates the tables
		d.truncateAll()
		m := &model{audit: map[string]int64{}, metrics: map[string]*metricSums{}}
		n := rapid.IntRange(0, 60).Draw(rt, "records")
		for i := 0; i < n; i++ {
			w := writers[rapid.IntRange(0, 1).Draw(rt, "writer")]
			for _, r := range addRecords(rt, w) {
				if r.User == "" {
					r.User = "-"
				}
				m.add(&r)
			}
			if rapid.IntRange(0, 20).Draw(rt, "flush") == 0 {
				flush(t, w)
			}
		}
		flush(t, writers[0])
		flush(t, writers[1])
		m.check(t, d)
		written := writers[0].Stats().Written + writers[1].Stats().Written
		if written != m.records {
			rt.Errorf("Written: got %d, want %d", written, m.records)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// Refusals that are equal and of the same second share a row. Refusals that differ in the outcome, key, user,
// API key, tier or cost have rows of their own.
func TestEqualRefusalsShareRow(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	for i := 0; i < 1000; i++ {
		for _, r := range []history.Record{
			{Outcome: outcome.Limited, Key: "k", User: "anna", Prefix: "p"},
			{Outcome: outcome.Limited, Key: "l", User: "anna", Prefix: "p"},
			{Outcome: outcome.Limited, Key: "k", User: "ben", Prefix: "p"},
			{Outcome: outcome.Limited, Key: "k", User: "ben", Prefix: "p", KeyID: 7},
			{Outcome: outcome.Limited, Key: "k", User: "ben", Prefix: "p", Tier: "pro"},
			{Outcome: outcome.Limited, Key: "k", User: "anna", Prefix: "p", Cost: 2},
			{Outcome: outcome.Limited, Shadow: true, Key: "k", User: "anna", Prefix: "p"},
		} {
			r.Time = baseTime.Add(time.Duration(i) * time.Millisecond) // the next second begins at i = 500
			r.Audit = option.Audit{Level: option.AuditDenied}
			r.Path = fmt.Sprint("/", i)
			if !r.Shadow {
				r.Status = 429
			}
			history.Add(w, &r)
		}
	}
	flush(t, w)
	// Each of the 7 refusals has a row in each of the 2 seconds, with the path of its first request.
	check.Equal(t, "rows, refusals in each, and paths", d.Query("SELECT count(*), min(count), max(count), "+
		"string_agg(DISTINCT path, ' ' ORDER BY path) FROM rate_limit_audit"), "14 500 500 /0 /500")
}

// A sample contains all refusals. The weights of its rows add up to about the number of requests.
func TestSampleEstimatesRequests(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	for i := 0; i < 20000; i++ {
		history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted,
			Audit: option.Audit{Level: option.AuditSample, Share: 0.05}})
	}
	for i := 0; i < 100; i++ {
		history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Limited,
			Audit: option.Audit{Level: option.AuditSample, Share: 0.05}})
	}
	flush(t, w)
	check.Equal(t, "refusals",
		d.Query("SELECT count, weight::text FROM rate_limit_audit WHERE outcome = 'limited'"),
		"100 1")
	// 5 % of 20,000 requests are about 1,000 rows of weight 20. The bounds are 8 standard deviations (of 31
	// rows) away.
	n := cluster.Query[int64](t, d.DSN, "SELECT sum(count * weight)::bigint FROM rate_limit_audit "+
		"WHERE outcome = 'admitted'")
	if n < 20*750 || n > 20*1250 {
		t.Errorf("requests in the sample: got %d, want about 20000", n)
	}
	check.Equal(t, "metrics", d.Query("SELECT admitted, limited FROM rate_limit_metrics_day"), "20000 100")
}

// Several Writers that write the same rows at once, each in another order, do not deadlock. A batch that has
// waited for the others until its lock timeout of 1 s, as on a busy machine, is sent again.
func TestConcurrentWritersDoNotDeadlock(t *testing.T) {
	d := newTestDB(t)
	// The server finds a deadlock before a lock timeout hides it.
	d.Exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 200', " +
		"current_database()); END $$")
	const count, records = 6, 3000
	var writersDone sync.WaitGroup
	for i := range count {
		w := d.newWriter(history.Settings{Node: fmt.Sprint("n", i)})
		writersDone.Go(func() {
			failed := 0
			for n := range records {
				history.Add(w, &history.Record{
					Time: baseTime, User: fmt.Sprint("u", (n*(i+7))%200),
					Endpoint: fmt.Sprint("e", (n*(i+3))%5), Outcome: outcome.Admitted, Cost: 1,
					Audit: auditAll,
				})
				for n%300 == 0 || n == records-1 {
					err := w.Flush(context.Background())
					if err == nil {
						break
					}
					if failed++; failed > 100 || strings.Contains(err.Error(), "deadlock") {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	writersDone.Wait()
	check.Equal(t, "sums", d.Query(
		"SELECT (SELECT sum(count) FROM rate_limit_audit)::bigint, (SELECT sum(requests) FROM "+
			"rate_limit_metrics)::bigint"), fmt.Sprint(count*records, 3*count*records))
}
