package integration

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// witnessSQL notes each state that a row has been in, in the order of the
// changes, which the row's lock gives.
const witnessSQL = `
CREATE TABLE witness (id bigserial, at timestamptz, prefix text, count bigint, prev_count bigint,
window_start timestamptz, expires_at timestamptz);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO witness (at, prefix, count, prev_count, window_start, expires_at)
	VALUES (clock_timestamp(), new.prefix, new.count, coalesce(new.prev_count, 0), new.window_start,
	new.expires_at);
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON rate_limit_ephemeral FOR EACH ROW EXECUTE FUNCTION note()`

// rounded is the unit to which the Node program rounds a time down: a millisecond.
const rounded = 1000

// state is a row's, as the witness saw it; times in microseconds.
type state struct{ at, count, previous, start, expires int64 }

// contest is a limit that both sides use up.
type contest struct {
	shared
	clock         time.Duration // how far Node's is ahead
	byNode, store atomic.Int64  // what passed
}

// TestNodeProgramSharesWindows lets a Node program and a store hit the same rows as fast as they
// can. The windows of the rows turn many times, and either side may turn one. The Node program's
// clock is the server's, or runs behind or ahead of it.
func TestNodeProgramSharesWindows(t *testing.T) {
	dsn := cluster.Open(t)
	node := startNode(t, dsn)
	node.tables(t)
	conn := cluster.Connect(t, dsn)
	if _, err := conn.Exec(t.Context(), witnessSQL); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, dsn)
	const window = 300 * time.Millisecond
	var contests []*contest
	for _, a := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		for _, clock := range []time.Duration{0, -100 * time.Millisecond, 100 * time.Millisecond} {
			c := &contest{clock: clock}
			c.limit = &ratelimit.Limit{Prefix: a.String() + clock.String(), Algorithm: a, Events: 60,
				Window: window}
			contests = append(contests, c)
		}
	}
	takeInTurns(t, node, store, contests)
	for _, c := range contests {
		states := witnessed(t, conn, c.limit.Prefix)
		charged, windows := int64(0), 0
		if c.limit.Algorithm == ratelimit.FixedWindow {
			charged, windows = fixedCharges(t, c.limit, c.clock, states)
		} else {
			charged, windows = slidingCharges(t, c.limit, c.clock, states)
		}
		if passed := c.byNode.Load() + c.store.Load(); passed != charged {
			t.Errorf("%s: %d passed (%d in Node, %d in the store), and the rows were charged %d",
				c.limit.Prefix, passed, c.byNode.Load(), c.store.Load(), charged)
		}
		if c.byNode.Load() == 0 || c.store.Load() == 0 || windows < 4 {
			t.Errorf("%s: %d passed in Node, %d in the store, in %d windows; want some on both sides, and "+
				"four windows", c.limit.Prefix, c.byNode.Load(), c.store.Load(), windows)
		}
	}
}

// witnessed returns the states of a prefix's only row.
func witnessed(t *testing.T, conn *pgx.Conn, prefix string) []state {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT at, count, prev_count, window_start, expires_at FROM "+
		"witness WHERE prefix = $1 ORDER BY id", prefix)
	if err != nil {
		t.Fatal(err)
	}
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (state, error) {
		var s state
		var at, start, expires time.Time
		err := row.Scan(&at, &s.count, &s.previous, &start, &expires)
		s.at, s.start, s.expires = at.UnixMicro(), start.UnixMicro(), expires.UnixMicro()
		return s, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return states
}

// fixedCharges returns the units that passed in the windows of a row: the count of each, without the refusals
// that Node has added to it. A window ends no earlier than either
// clock says; a row that the Node program has deleted has ended by its clock.
func fixedCharges(t *testing.T, l *ratelimit.Limit, clock time.Duration, states []state) (charged int64,
	windows int) {
	t.Helper()
	highest := map[int64]int64{}
	var before state
	for _, s := range states {
		if s.expires != s.start+l.Window.Microseconds() {
			t.Errorf("%s: a window of %d µs expires after %d", l.Prefix, l.Window.Microseconds(),
				s.expires-s.start)
		}
		if s.start != before.start && s.start < before.start+(l.Window-max(0, clock)).Microseconds()-rounded {
			t.Errorf("%s: a window begins %d µs after the one before", l.Prefix, s.start-before.start)
		}
		highest[s.start] = max(highest[s.start], s.count)
		before = s
	}
	for _, count := range highest {
		charged += min(count, l.Events)
	}
	return charged, len(highest)
}

// slidingCharges returns the units that a row was charged in all its windows. No state may
// exceed the limit by the algorithm's formula, at the later of the two clocks:
// what is weighed only loses weight.
func slidingCharges(t *testing.T, l *ratelimit.Limit, clock time.Duration, states []state) (charged int64,
	windows int) {
	t.Helper()
	const rounding = 1e-9
	var before state
	for _, s := range states {
		if s.expires != s.start+2*l.Window.Microseconds() {
			t.Errorf("%s: windows of %d µs expire after %d", l.Prefix, l.Window.Microseconds(),
				s.expires-s.start)
		}
		elapsed := float64(s.at+max(0, clock.Microseconds())-s.start) / float64(l.Window.Microseconds())
		weight := 1 - min(1, max(0, elapsed))
		if used := float64(s.previous)*weight + float64(s.count); used > float64(l.Events)+rounding {
			t.Errorf("%s: %d·%.3f + %d exceeds %d", l.Prefix, s.previous, weight, s.count, l.Events)
		}
		if s.start/rounded != before.start/rounded {
			windows++
			charged += s.count
		} else {
			charged += s.count - before.count
		}
		before = s
	}
	return charged, windows
}

// takeInTurns takes from all limits for three seconds, on both sides.
func takeInTurns(t *testing.T, node *nodeProgram, store ratelimit.Store, contests []*contest) {
	t.Helper()
	end := time.Now().Add(3 * time.Second)
	var wait sync.WaitGroup
	for _, c := range contests {
		hit := c.node(1)
		hit.ClockMs = c.clock.Milliseconds()
		for _, side := range []struct {
			take   taker
			passed *atomic.Int64
		}{
			{func(int64) (bool, error) { return node.take(hit) }, &c.byNode},
			{c.byStore(store), &c.store},
		} {
			for range 2 {
				wait.Go(func() {
					for time.Now().Before(end) {
						passes, err := side.take(1)
						if err != nil {
							t.Errorf("%s: %v", c.limit.Prefix, err)
							return
						}
						if passes {
							side.passed.Add(1)
						}
						// The side with the clock that is 100 ms ahead begins the new window
						// first. It must leave some quota to the other side.
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
		}
	}
	wait.Wait()
}
