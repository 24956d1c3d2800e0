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

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// model holds the sums that the tables must have.
type model struct {
	audit, metrics map[string][]int64
	decisions      int64
}

func newModel() *model {
	return &model{audit: map[string][]int64{}, metrics: map[string][]int64{}}
}

func addTo(sums map[string][]int64, key string, amounts ...int64) {
	if sums[key] == nil {
		sums[key] = make([]int64, len(amounts))
	}
	for i, n := range amounts {
		sums[key][i] += n
	}
}

func boolToInt(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// add adds a record. Its texts must not be empty or contain spaces.
func (m *model) add(r *history.Record) {
	at := r.Time.UTC()
	if r.Audit.Level == settings.AuditAll || r.Audit.Level == settings.AuditDenied &&
		r.Outcome != history.Allowed {
		m.decisions++
		key := fmt.Sprint(at.Format("20060102150405"), " ", r.Outcome, " ", r.Prefix, " ", r.Key, " ",
			r.User, " ", r.Cost)
		addTo(m.audit, key, 1)
	}
	passed := r.Outcome == history.Allowed || r.Outcome == history.Failed && r.Status == 0
	shadow := r.Outcome == history.Shadow
	countIf := func(d history.OutcomeKind) int64 { return boolToInt(r.Outcome == d) }
	for granularity, layout := range map[string]string{"minute": "200601021504", "hour": "2006010215",
		"day": "20060102"} {
		key := func(prefix string) string {
			return fmt.Sprint(granularity, " ", at.Format(layout), " ", r.User, " ", r.KeyID, " ", prefix,
				" ", r.Endpoint)
		}
		addTo(m.metrics, key(r.Prefix),
			boolToInt(!shadow), countIf(history.Allowed), countIf(history.Limited), countIf(history.Blocked),
			countIf(history.Rejected), countIf(history.Failed), countIf(history.Shadow),
			boolToInt(r.Outcome == history.Limited && r.Source == ratelimit.FromRemembered),
			boolToInt(passed && r.Source == ratelimit.FromLease),
			boolToInt(!shadow && r.Quota > 0 && r.Source == ratelimit.FromPostgres), boolToInt(!shadow), 0, 0)
		for i, h := range r.Hits {
			if passed && h.Cost > 0 {
				addTo(m.metrics, key(h.Limit.Prefix), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, h.Cost,
					h.Cost+boolToInt(len(r.Unsettled) > i && r.Unsettled[i])*7)
			}
		}
	}
}

// formatSums returns the sums as sorted lines.
func formatSums(sums map[string][]int64) string {
	var lines []string
	for key, amounts := range sums {
		lines = append(lines, key+" "+strings.Trim(fmt.Sprint(amounts), "[]"))
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
	checkEqual(t, "audit", sorted(d.query(`SELECT to_char(time, 'YYYYMMDDHH24MISS'), outcome,
		concat_ws('/', prefix, limit_name), key,
		coalesce(user_id, '-'), cost, sum(count)::bigint FROM rate_limit_audit
		GROUP BY 1, 2, 3, 4, 5, 6`)), formatSums(m.audit))
	checkEqual(t, "metrics", sorted(d.query(`SELECT granularity, to_char(time, CASE granularity
			WHEN 'minute' THEN 'YYYYMMDDHH24MI' WHEN 'hour' THEN 'YYYYMMDDHH24' ELSE 'YYYYMMDD' END),
		coalesce(nullif(user_id, ''), '-'), key_id, prefix || coalesce('/' || nullif(limit_name, ''), ''),
		endpoint, requests, allowed, limited, blocked, rejected, errors, shadow, from_memory, from_lease,
		from_database, coalesce((SELECT sum(l) FROM unnest(latency) l), 0)::bigint, charged, settled
		FROM rate_limit_metrics`)), formatSums(m.metrics))
}

func (d *testDB) truncateAll() {
	d.t.Helper()
	d.exec("TRUNCATE rate_limit_audit, rate_limit_metrics, rate_limit_writers")
}

// drawRecord draws a record near the end of a day.
func drawRecord(t *rapid.T) history.Record {
	r := history.Record{
		Time: time.Date(2026, 12, 31, 23, 59, 58, 0, time.UTC).Add(
			time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond),
		Outcome:  history.OutcomeKind(rapid.IntRange(0, 5).Draw(t, "decision")),
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
		Audit: settings.Audit{Level: rapid.SampledFrom(
			[]settings.Level{settings.AuditOff, settings.AuditDenied, settings.AuditAll}).Draw(t, "level")},
	}
	if r.Outcome != history.Allowed && rapid.Bool().Draw(t, "refused") {
		r.Status = 429
	}
	r.Hits = hits(r.Prefix, int(r.Cost))
	if rapid.Bool().Draw(t, "several") {
		r.Hits = append(r.Hits, hits("rule/tokens/m", 5)...)
	}
	return r
}

// settle settles some hits of a record to 7 units more than their charge.
func settle(t *rapid.T, w *history.Writer, r *history.Record) {
	for i, h := range r.Hits {
		if h.Cost == 0 || !rapid.Bool().Draw(t, "settled") {
			continue
		}
		if r.Unsettled == nil {
			r.Unsettled = make([]bool, len(r.Hits))
		}
		r.Unsettled[i] = true
		if r.Outcome == history.Allowed || r.Outcome == history.Failed && r.Status == 0 {
			history.Settle(w, &history.Settled{Time: r.Time, User: r.User, KeyID: r.KeyID,
				Prefix: h.Limit.Prefix, Endpoint: r.Endpoint, Units: h.Cost + 7})
		}
	}
}

// addRecords adds a record with Add, or several with equal times with AddCounted, as the interpreted plugin
// does.
func addRecords(t *rapid.T, w *history.Writer) []history.Record {
	records := []history.Record{drawRecord(t)}
	if records[0].Outcome > history.Limited || records[0].Audit.Level == settings.AuditAll {
		settle(t, w, &records[0])
		history.Add(w, &records[0])
		return records
	}
	for range rapid.IntRange(0, 4).Draw(t, "more") {
		r := drawRecord(t)
		r.Time, r.Audit = records[0].Time, records[0].Audit
		r.Outcome %= history.Limited + 1
		records = append(records, r)
	}
	for _, i := range history.AddCounted(w, records) {
		history.Add(w, &records[i])
	}
	return records
}

// Two Writers record requests around midnight, with merged refusals. The sums in the tables equal the model.
func TestTablesAddUpToRequests(t *testing.T) {
	d := newTestDB(t)
	rapid.Check(t, func(rt *rapid.T) {
		writers := []*history.Writer{d.newWriter(history.Settings{}),
			d.newWriter(history.Settings{Node: "n2"})}
		defer writers[0].Close()
		defer writers[1].Close()
		flush(t, writers[0]) // creates the tables
		d.truncateAll()
		m := newModel()
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
		if written != m.decisions {
			rt.Errorf("Written: got %d, want %d", written, m.decisions)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// Equal refusals of a second share a row.
func TestEqualRefusalsShareRow(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	for i := 0; i < 1000; i++ {
		for _, r := range []history.Record{
			{Outcome: history.Limited, Key: "k", User: "anna", Prefix: "p"},
			{Outcome: history.Limited, Key: "l", User: "anna", Prefix: "p"},
			{Outcome: history.Limited, Key: "k", User: "ben", Prefix: "p"},
			{Outcome: history.Limited, Key: "k", User: "ben", Prefix: "p", KeyID: 7},
			{Outcome: history.Limited, Key: "k", User: "ben", Prefix: "p", Tier: "pro"},
			{Outcome: history.Limited, Key: "k", User: "anna", Prefix: "p", Cost: 2},
			{Outcome: history.Shadow, Key: "k", User: "anna", Prefix: "p"},
		} {
			r.Time = baseTime.Add(time.Duration(i%500) * time.Millisecond)
			if i >= 500 {
				r.Time = r.Time.Add(500 * time.Millisecond)
			}
			r.Audit = settings.Audit{Level: settings.AuditDenied}
			r.Path = fmt.Sprint("/", i)
			history.Add(w, &r)
		}
	}
	flush(t, w)
	// One row for each of the 7 refusals in each of 2 seconds, with the path of the first.
	checkEqual(t, "rows, refusals in each, and paths", d.query("SELECT count(*), min(count), max(count), "+
		"string_agg(DISTINCT path, ' ' ORDER BY path) FROM rate_limit_audit"), "14 500 500 /0 /500")
}

// A sample contains all refusals, and its rows have weights that add up to the number of requests.
func TestSampleEstimatesRequests(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{MaxPending: 100000})
	for i := 0; i < 20000; i++ {
		history.Add(w, &history.Record{Time: baseTime, Outcome: history.Allowed,
			Audit: settings.Audit{Level: settings.AuditSample, Share: 0.05}})
	}
	for i := 0; i < 100; i++ {
		history.Add(w, &history.Record{Time: baseTime, Outcome: history.Limited,
			Audit: settings.Audit{Level: settings.AuditSample, Share: 0.05}})
	}
	flush(t, w)
	checkEqual(t, "refusals",
		d.query("SELECT count, weight::text FROM rate_limit_audit WHERE outcome = 'limited'"),
		"100 1")
	// 1,000 are expected, with a standard deviation of 31.
	n := d.queryInt("SELECT sum(count * weight)::bigint FROM rate_limit_audit WHERE outcome = 'allowed'")
	if n < 20*750 || n > 20*1250 {
		t.Errorf("requests in the sample: got %d, want about 20000", n)
	}
	checkEqual(t, "metrics", d.query("SELECT allowed, limited FROM rate_limit_metrics_day"), "20000 100")
}

// Several Writers write the same rows concurrently, each in another order, without deadlocks.
func TestConcurrentWritersDoNotDeadlock(t *testing.T) {
	d := newTestDB(t)
	const count, records = 6, 3000
	writers := make([]*history.Writer, count)
	for i := range writers {
		writers[i] = d.newWriter(history.Settings{Node: fmt.Sprint("n", i)})
	}
	var writersDone sync.WaitGroup
	for i := range writers {
		writersDone.Go(func() {
			for n := 0; n < records; n++ {
				history.Add(writers[i], &history.Record{
					Time: baseTime, User: fmt.Sprint("u", (n*(i+7))%200),
					Endpoint: fmt.Sprint("e", (n*(i+3))%5), Outcome: history.Allowed, Cost: 1,
					Audit: auditAll,
				})
				if n%300 == 0 {
					if err := writers[i].Flush(context.Background()); err != nil {
						t.Error(err)
					}
				}
			}
			if err := writers[i].Flush(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	writersDone.Wait()
	checkEqual(t, "sums", d.query(
		"SELECT (SELECT sum(count) FROM rate_limit_audit)::bigint, (SELECT sum(requests) FROM "+
			"rate_limit_metrics)::bigint"), fmt.Sprint(count*records, 3*count*records))
	for _, w := range writers {
		if stats := w.Stats(); stats.Failures != 0 {
			t.Errorf("failures: got %d, want 0; the last one: %s", stats.Failures, stats.LastError)
		}
	}
}
