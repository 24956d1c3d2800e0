package engine_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const second = conformance.Second

// minTime is the start of schedules. A reset sets the start of a window to the year 1800, so schedules must
// start at least two of the longest windows, 200 years, later.
const minTime = 1_000_000_000 * second

// model decides requests one after the other with the Go steps.
type model map[string]*algorithm.Row

func (m model) row(h ratelimit.Hit) *algorithm.Row {
	name := fmt.Sprint(h.Limit.Durable, "/", h.Limit.Prefix, "/", h.StoredKey())
	if m[name] == nil {
		m[name] = &algorithm.Row{}
	}
	return m[name]
}

func (m model) decide(now int64, c *batch.Call) []ratelimit.Decision {
	decisions := make([]ratelimit.Decision, len(c.Hits))
	var rows []*algorithm.Row
	var nows []int64
	for _, h := range c.Hits {
		rows = append(rows, m.row(h))
		nows = append(nows, now)
	}
	if c.Reset {
		for _, r := range rows {
			*r = algorithm.Row{}
		}
		return nil
	}
	algorithm.Decide(c.Hits, rows, nows, decisions)
	return decisions
}

// decideBatch decides calls in the same order as a store: first resets and calls of one hit, then calls of
// several hits.
func (m model) decideBatch(now int64, calls []*batch.Call) [][]ratelimit.Decision {
	decisions := make([][]ratelimit.Decision, len(calls))
	for _, several := range []bool{false, true} {
		for i, c := range calls {
			if (len(c.Hits) > 1 && !c.Reset) == several {
				decisions[i] = m.decide(now, c)
			}
		}
	}
	return decisions
}

// rowSQL formats a row like formatRow. A window that began in 1800 counts as no window.
const rowSQL = `SELECT concat_ws(' ', coalesce(count, 0), coalesce(prev_count, 0),
	micros(nullif(window_start, '1800-01-01Z')), CASE WHEN tokens IS NULL THEN 'NULL' ELSE
	encode(float8send(tokens), 'hex') END,
	micros(last_refill), coalesce(remainder, 0), (SELECT array_agg(micros(h))::text FROM unnest(hits) h),
	micros(expires_at)) FROM %s WHERE prefix = $1::text AND key = $2::text
	AND NOT (coalesce(window_start, '1800-01-01Z') = '1800-01-01Z' AND tokens IS NULL AND last_refill IS
	NULL AND coalesce(cardinality(hits), 0) = 0)`

// microsSQL creates the function that rowSQL calls.
const microsSQL = `CREATE FUNCTION micros(t timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
	$$ SELECT coalesce((extract(epoch FROM t) * 1000000)::bigint, 0) $$`

// formatRow formats a row like rowSQL. It returns "" for a blank row.
func formatRow(r *algorithm.Row) string {
	if r.Blank() {
		return ""
	}
	tokens := "NULL"
	if r.HasTokens {
		tokens = fmt.Sprintf("%016x", math.Float64bits(r.Tokens))
	}
	hits := ""
	if len(r.Hits) > 0 {
		hits = " {" + strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Hits), " ", ","), "[]") + "}"
	}
	return fmt.Sprintf("%d %d %d %s %d %d%s %d", r.Count, r.PrevCount, r.Start, tokens, r.Refill, r.Remainder,
		hits, r.Expires)
}

// modelTest compares a store with a model. The test determines the batches and the time.
type modelTest struct {
	store *engine.Engine
	clock *conformance.Clock
	model model
	db    *rowReader
	n     int // the number of prefixes so far

	retryAfter time.Duration // of the last decision
}

func newModelTest(t *testing.T) *modelTest {
	s := newTestDB(t)
	s.exec(engine.TableSQL + microsSQL)
	m := &modelTest{clock: conformance.NewClock(), db: &rowReader{DB: s.openDB("")}}
	o := bareOptions
	o.Now = m.clock.Now
	o.DisableMigration = true
	m.store = s.openEngineOn(m.db, o)
	return m
}

// startSchedule resets the clock, the model and the store's memory for a new schedule.
func (m *modelTest) startSchedule() {
	*m.clock = *conformance.NewClock()
	m.model = model{}
	m.retryAfter = 0
	m.store.TakeFirst()
}

// newPrefix returns a prefix that no schedule has used.
func (m *modelTest) newPrefix() string {
	m.n++
	return fmt.Sprint("p", m.n)
}

// rowReader reads a row after each pipeline of a store, in the same round trip.
type rowReader struct {
	pgdb.DB
	read *pgdb.Statement // nil reads nothing
}

func (d *rowReader) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	if d.read != nil {
		statements = append(statements[:len(statements):len(statements)], d.read)
	}
	return d.DB.Run(ctx, timeout, statements)
}

// readAfterEachRun makes d read the row of a hit after each pipeline.
func (d *rowReader) readAfterEachRun(h ratelimit.Hit) {
	table := map[bool]string{false: "rate_limit_ephemeral", true: "rate_limit_durable"}[h.Limit.Durable]
	d.read = &pgdb.Statement{SQL: fmt.Sprintf(rowSQL, table), Args: []any{h.Limit.Prefix, h.StoredKey()}}
}

// result returns the row that was read, or "" if there is none.
func (d *rowReader) result(t failer) string {
	if d.read.Err != nil {
		t.Fatalf("reading the row: %v", d.read.Err)
	}
	if d.read.Rows == 0 {
		return ""
	}
	return string(d.read.Result[4:])
}

// newCall returns a call that takes hits, or resets their keys.
func newCall(reset bool, hits ...ratelimit.Hit) *batch.Call {
	c := batch.NewCall()
	c.Prepare(hits, reset)
	return c
}

func (m *modelTest) checkCall(t failer, c *batch.Call) ratelimit.Decision {
	h := c.Hits[0]
	m.db.readAfterEachRun(h)
	want := m.model.decide(m.clock.Micro, c)
	m.store.DecideBatch([]*batch.Call{c})
	requireEqual(t, "", m.clock.Micro, h, c, want)
	if got, want := m.db.result(t), formatRow(m.model.row(h)); got != want {
		t.Fatalf("%+v of %+v at %d: row\n got %s\nwant %s", h, *h.Limit, m.clock.Micro, got, want)
	}
	if c.Reset {
		return ratelimit.Decision{}
	}
	m.retryAfter = want[0].RetryAfter
	return want[0]
}

// requireEqual fails the test unless the decisions of a call are want, the decisions of the model.
func requireEqual(t failer, what string, now int64, h ratelimit.Hit, c *batch.Call,
	want []ratelimit.Decision) {
	if c.Err != nil || len(c.Decisions) != len(want) {
		t.Fatalf("%s%+v of %+v at %d: got %v, %+v, want %+v", what, h, *h.Limit, now, c.Err, c.Decisions,
			want)
	}
	for i := range want {
		if want[i] != c.Decisions[i] {
			t.Fatalf("%s%+v, hit %d, of %+v at %d:\n got %+v\nwant %+v", what, c.Hits[i], i, *c.Hits[i].Limit,
				now, c.Decisions[i], want[i])
		}
	}
}

// drawCall draws a call of one hit on one of a few keys.
func drawCall(t *rapid.T, limits []*ratelimit.Limit) *batch.Call {
	l := rapid.SampledFrom(limits).Draw(t, "limit")
	h := ratelimit.Hit{Limit: l,
		Key: rapid.SampledFrom([]string{"k", "l", "", "sha256:k", "\x00"}).Draw(t, "key"),
		Cost: rapid.OneOf(rapid.Int64Range(1, 8), rapid.Int64Range(1, l.Capacity()),
			rapid.SampledFrom([]int64{l.Capacity(), l.Capacity() + 1, math.MaxInt64})).Draw(t, "cost")}
	what := rapid.IntRange(0, 19).Draw(t, "what")
	switch what {
	case 1, 2:
		h.Peek = true
	case 3, 4:
		h.Secret = true
	case 5, 6, 7, 8:
		h.Cost = rapid.SampledFrom([]int64{-h.Cost, -h.Cost, math.MinInt64}).Draw(t, "refund")
	}
	return newCall(what == 0, h)
}

// moveClock moves the clock by a random step: often to the end of a window or of the last RetryAfter, back by
// seconds, or sometimes far ahead or back.
func (m *modelTest) moveClock(t *rapid.T, l *ratelimit.Limit) {
	switch rapid.IntRange(0, 24).Draw(t, "clock") {
	case 0:
		m.clock.Micro += conformance.DrawJump(t, l)
	case 1, 2:
		m.clock.Micro = max(m.clock.Micro-conformance.DrawJump(t, l), minTime)
	}
	m.clock.Micro += rapid.SampledFrom([]int64{0, 0, -1, -second, -5 * second}).Draw(t, "back") +
		conformance.DrawAdvance(t, l, m.retryAfter%ratelimit.MaxWindow)
	if m.clock.Micro > conformance.MaxTime {
		m.clock.Micro = conformance.NewClock().Micro
	}
}
