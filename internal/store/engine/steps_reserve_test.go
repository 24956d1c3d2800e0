package engine_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// reservation is a running request of a schedule.
type reservation struct {
	hit ratelimit.Hit
	n   int
}

// reservesTest compares reservations of a store with the Go steps.
type reservesTest struct {
	*modelTest
	s       *testDB
	running []reservation
	n       int // the number of reservations so far
}

// uuid returns the number of a reservation.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// reserve decides a batch of reservations.
func (r *reservesTest) reserve(t *rapid.T, l *ratelimit.Limit) {
	var calls []*batch.Call
	row := r.model.row(ratelimit.Hit{Limit: l, Key: "k"})
	var want []ratelimit.Decision
	var hits []ratelimit.Hit
	n := rapid.IntRange(1, 4).Draw(t, "reservations")
	allowed := make([]bool, n)
	for i := range n {
		cost := rapid.OneOf(rapid.Int64Range(1, 8), rapid.Int64Range(1, l.Events)).Draw(t, "cost")
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: min(cost, l.Events), Hold: &ratelimit.Hold{}}
		hits = append(hits, h)
		calls = append(calls, newCall(false, h))
		allowed[i] = algorithm.Of(l).Charge(l, row, r.clock.Micro, 1, h.Cost) == 1
		if allowed[i] {
			want = append(want, algorithm.Admitted(l, row, r.clock.Micro))
		} else {
			want = append(want, algorithm.Refused(l, row, r.clock.Micro, h.Cost))
		}
	}
	r.store.DecideBatch(calls)
	for i, c := range calls {
		if c.Err != nil || len(c.Decisions) != 1 || c.Decisions[0] != want[i] {
			t.Fatalf("reservation %d of %d on %+v at %d:\n got %v %+v\nwant %+v", hits[i].Cost, i, *l,
				r.clock.Micro, c.Err, c.Decisions, want[i])
		}
		if allowed[i] {
			r.n++
			r.running = append(r.running, reservation{hits[i], r.n})
		}
	}
}

// settle ends a running request, several times if the test draws that, and returns when the store has.
func (r *reservesTest) settle(t *rapid.T, l *ratelimit.Limit) {
	at := rapid.IntRange(0, len(r.running)-1).Draw(t, "running")
	one := r.running[at]
	r.running = append(r.running[:at], r.running[at+1:]...)
	row := r.model.row(one.hit)
	if rapid.IntRange(0, 4).Draw(t, "released") == 0 {
		one.hit.Hold.Release()
		algorithm.Settle(l, row, r.clock.Micro, 0, 0, one.hit.Cost)
	} else {
		units := rapid.OneOf(rapid.Int64Range(1, 8), rapid.Int64Range(1, 3*l.Events)).Draw(t, "units")
		rest := rapid.Int64Range(0, 999).Draw(t, "rest")
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			r.store.Ledger().Settle(&batch.Bill{Day: time.Now().Unix() / 86400,
				ID: uuid(one.n), Charges: []batch.Charge{{Limit: l,
					Key: "k", Unit: "tokens", RealUnits: units, Excess: rest, Hold: one.hit.Hold}}})
		}
		algorithm.Settle(l, row, r.clock.Micro, units, rest, one.hit.Cost)
	}
	for r.store.Ledger().Unsettled() > 0 || r.store.Ledger().Held(one.hit.Hold) > 0 {
		time.Sleep(100 * time.Microsecond)
	}
}

// check compares the row with the model, and what a peek decides.
func (r *reservesTest) check(t *rapid.T, l *ratelimit.Limit) {
	h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1, Peek: true}
	row := r.model.row(h)
	c := newCall(false, h)
	r.store.DecideBatch([]*batch.Call{c})
	requireEqual(t, "", r.clock.Micro, h, c, r.model.decide(r.clock.Micro, newCall(false, h)))
	table := map[bool]string{false: "rate_limit_ephemeral", true: "rate_limit_durable"}[l.Durable]
	got := r.s.queryText(fmt.Sprintf(`SELECT (SELECT concat_ws(' ', count, coalesce(prev_count, 0),
		micros(window_start), micros(expires_at), coalesce(remainder, 0), coalesce((SELECT sum(held[i][2])
		FROM generate_subscripts(held, 1) i), 0)) FROM %s WHERE prefix = '%s')`, table, l.Prefix))
	want := fmt.Sprint(row.Count, row.PrevCount, row.Start, row.Expires, row.Remainder, row.Held)
	if got != want && (row.Start != 0 || got != "NULL") {
		t.Fatalf("the row of %+v at %d\n got %s\nwant %s", *l, r.clock.Micro, got, want)
	}
}

// In random schedules of reservations and settlements, the SQL statements and the Go steps make the same
// decisions and rows, and a settlement that is sent again counts once.
func TestReservationsInSQLAndGoAreEqual(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	s.exec(engine.TableSQL + microsSQL)
	m := &modelTest{clock: conformance.NewClock()}
	o := bareOptions
	o.Now = m.clock.Now
	o.DisableMigration = true
	m.store = s.openEngine(o)
	r := &reservesTest{modelTest: m, s: s}
	for _, name := range []string{"sliding_window", "fixed_window", "calendar"} {
		t.Run(name, func(t *testing.T) {
			conformance.Check(t, 300, func(t *rapid.T) {
				m.startSchedule()
				r.running = nil
				l := conformance.DrawLimit(t, name, m.newPrefix())
				l.Events = min(l.Events, 1<<40) // so that sums of units do not reach their bound
				l.Durable = rapid.Bool().Draw(t, "durable")
				l.Reserves = true
				for range rapid.IntRange(1, 10).Draw(t, "steps") {
					m.moveClock(t, l)
					if len(r.running) == 0 || rapid.Bool().Draw(t, "reserve") {
						r.reserve(t, l)
					} else {
						r.settle(t, l)
					}
					r.check(t, l)
				}
			})
		})
	}
}
