package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// takeSlots takes n slots of a key, one by one, and returns the granted slots. onLost is called when a
// granted slot is lost.
func takeSlots(t testing.TB, store ratelimit.Store, l *ratelimit.Limit, n int,
	onLost func()) []*ratelimit.Hold {
	t.Helper()
	var slots []*ratelimit.Hold
	for range n {
		slot := &ratelimit.Hold{Lost: onLost}
		if takeOne(t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1, Hold: slot}).Allowed {
			slots = append(slots, slot)
		}
	}
	return slots
}

// awaitFree waits until want slots of a key are free.
func awaitFree(t testing.TB, store ratelimit.Store, l *ratelimit.Limit, want int64) {
	t.Helper()
	await.Within(t, testTimeout, fmt.Sprint(want, " free slots"), func() bool {
		d, _, err := tryOne(store, testTimeout, ratelimit.Hit{Limit: l, Key: "k", Cost: 1, Peek: true})
		return err == nil && d.Remaining == want
	})
}

// An admitted request on six limits takes one round trip, although two limits are independent, one counts
// requests in flight, and one is durable.
func TestSixLimitsTakeOneRoundTrip(t *testing.T) {
	var trips atomic.Int64 // the pipelines with takes
	db := fakedb.Between(drivers.All["pgxdb"](t, cluster.Open(t)),
		func(statements []*pgdb.Statement, send fakedb.Send) error {
			if slices.ContainsFunc(statements, func(s *pgdb.Statement) bool {
				return engine.Meanings()[s.SQL].Kind == "take"
			}) {
				trips.Add(1)
			}
			return send(statements)
		})
	store := newEngine(t, db, engine.Options{CleanupProbability: -1})
	var hits []ratelimit.Hit
	for _, name := range []string{"shadow 1", "shadow 2", "durable", "window", "log"} {
		l := &ratelimit.Limit{Prefix: name, Events: 100, Window: time.Hour, Durable: name == "durable"}
		if name == "log" {
			l.Algorithm = ratelimit.SlidingLog
		}
		hits = append(hits,
			ratelimit.Hit{Limit: l, Key: "k", Cost: 1, Independent: strings.HasPrefix(name, "shadow")})
	}
	hits = append(hits, ratelimit.Hit{Limit: conformance.InFlight("flight", 20), Key: "k", Cost: 1})
	for i := range 10 {
		hits[5].Hold = &ratelimit.Hold{}
		decisions := make([]ratelimit.Decision, 6)
		before := trips.Load()
		if err := store.Take(t.Context(), testTimeout, hits, decisions); err != nil {
			t.Fatal(err)
		}
		if n := trips.Load() - before; n != 1 {
			t.Errorf("request %d took %d round trips, want 1", i, n)
		}
		if !allAllowed(decisions) {
			t.Errorf("request %d: got %+v, want all allowed", i, decisions)
		}
		store.AddSettlement(settlementOf(hits[3], decisions[3], -2)) // goes with the next request
	}
	if got := remaining(t, store, hits[3]); got != 100-10-2*10 {
		t.Errorf("%d units are left of the settled limit, want 70", got)
	}
}

// If a process is stopped for so long that its row expires, its slots become free. When the process
// continues, it detects that it lost the slots that another process has taken, and keeps the others.
func TestStoppedProcessLosesSlots(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	stopped := newEngine(t, drivers.All["pgxdb"](t, dsn), engine.Options{})
	other := newEngine(t, drivers.All["pgwire"](t, dsn), engine.Options{})
	for _, durable := range []bool{false, true} {
		l := conformance.InFlight("flight", 3)
		l.Durable = durable
		var mu sync.Mutex
		lost := 0
		slots := takeSlots(t, stopped, l, 4, func() { mu.Lock(); lost++; mu.Unlock() })
		if len(slots) != 3 || len(takeSlots(t, other, l, 1, nil)) != 0 {
			t.Fatalf("%d slots were taken, want 3", len(slots))
		}
		// The rows look as if the process had started and stopped long ago.
		table := map[bool]string{false: "rate_limit_ephemeral", true: "rate_limit_durable"}[durable]
		cluster.Execute(t, dsn, fmt.Sprintf(`UPDATE rate_limit_processes SET process = process - 1000,
			seen = '-infinity' WHERE process IN (SELECT s >> 32 FROM %s, unnest(slots) s);
			UPDATE %[1]s SET slots = ARRAY(SELECT s - (1000::bigint << 32) FROM unnest(slots) s)`, table))
		taken := takeSlots(t, other, l, 2, nil)
		if len(taken) != 2 {
			t.Fatalf("another process took %d slots, want 2", len(taken))
		}
		await.Within(t, testTimeout, "two requests to lose their slots",
			func() bool { mu.Lock(); defer mu.Unlock(); return lost == 2 })
		awaitFree(t, other, l, 0)
		for _, s := range append(slots, taken...) {
			s.Release()
		}
		awaitFree(t, other, l, 3)
		awaitFree(t, stopped, l, 3)
		if lost != 2 {
			t.Errorf("%d slots were lost, want 2", lost)
		}
	}
}

// A slot that was released is free for the next request, of one limit or of several, although the statement
// of the release has not reached the server.
func TestReleasedSlotIsFreeForTheNextRequest(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		arrived, proceed := make(chan bool, 10), make(chan bool)
		db := fakedb.Between(drivers.All["pgxdb"](t, cluster.Open(t)),
			func(statements []*pgdb.Statement, send fakedb.Send) error {
				isOf := func(kind string) bool {
					return slices.ContainsFunc(statements, func(s *pgdb.Statement) bool {
						return engine.Meanings()[s.SQL].Kind == kind
					})
				}
				if isOf("release") && !isOf("take") && !isOf("peek") {
					arrived <- true
					<-proceed
				}
				return send(statements)
			})
		store := newEngine(t, db, engine.Options{CleanupProbability: -1})
		t.Cleanup(func() { close(proceed) })
		flight := conformance.InFlight("flight", 1)
		flight.Durable = durable
		window := &ratelimit.Limit{Prefix: "window", Events: 100, Window: time.Hour}
		for i := range 2 {
			slot := &ratelimit.Hold{}
			hits := []ratelimit.Hit{{Limit: flight, Key: "k", Cost: 1, Hold: slot},
				{Limit: window, Key: "k", Cost: 1}}
			decisions := make([]ratelimit.Decision, 2)
			for range 2 {
				n := i + 1 // limits
				if err := store.Take(t.Context(), testTimeout, hits[:n], decisions[:n]); err != nil {
					t.Fatal(err)
				}
				if !allAllowed(decisions[:n]) {
					t.Fatalf("durable %t, %d limits: got %+v, want all allowed", durable, n, decisions[:n])
				}
				first := hits[0].Hold == slot
				hits[0].Hold.Release()
				if first { // the release is under way until the second request has its decision
					<-arrived
					hits[0].Hold = &ratelimit.Hold{}
					continue
				}
				proceed <- true
				<-arrived
				proceed <- true
			}
			awaitFree(t, store, flight, 1)
		}
	}
}
