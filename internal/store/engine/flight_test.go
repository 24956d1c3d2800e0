package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// tripDB is a DB that counts pipelines with takes, and loses the answers to some.
type tripDB struct {
	pgdb.DB
	mu    sync.Mutex
	trips int
	lose  string // the answers to pipelines with this text are lost
	lost  int    // answers
}

func (d *tripDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	err := d.DB.Run(ctx, statements)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range statements {
		if strings.Contains(s.SQL, "ON CONFLICT (prefix, key)") && strings.Contains(s.SQL, "granted") {
			d.trips++
			break
		}
	}
	for _, s := range statements {
		if d.lose != "" && strings.Contains(s.SQL, d.lose) {
			d.lost++
			for _, s := range statements {
				s.Err = errors.New("the connection is lost")
			}
			return errors.New("the connection is lost")
		}
	}
	return err
}

// enter takes n slots of a key, one by one, and returns those that are held. lost is for all of them.
func enter(t testing.TB, store ratelimit.Store, l *ratelimit.Limit, n int, lost func()) []*ratelimit.Slot {
	t.Helper()
	var held []*ratelimit.Slot
	for range n {
		slot := &ratelimit.Slot{Lost: lost}
		decisions := make([]ratelimit.Decision, 1)
		if err := store.Take(context.Background(), longTime,
			[]ratelimit.Hit{{Limit: l, Key: "k", Cost: 1, Slot: slot}}, decisions); err != nil {
			t.Fatal(err)
		}
		if decisions[0].Allowed {
			held = append(held, slot)
		}
	}
	return held
}

// awaitFree waits until so many slots of a key are free.
func awaitFree(t testing.TB, store ratelimit.Store, l *ratelimit.Limit, want int64) {
	t.Helper()
	await.Within(t, longTime, "free slots", func() bool {
		decisions := make([]ratelimit.Decision, 1)
		err := store.Take(context.Background(), longTime,
			[]ratelimit.Hit{{Limit: l, Key: "k", Cost: 1, Peek: true}}, decisions)
		return err == nil && decisions[0].Remaining == want
	})
}

// A request through six limits (two are on trial, one is of requests in flight and one is durable)
// takes one round trip if it is admitted.
func TestSixLimitsTakeOneRoundTrip(t *testing.T) {
	db := &tripDB{DB: drivers.All["pgxdb"](t, cluster.Open(t))}
	store := newStore(t, db, engine.Options{CleanupProbability: -1})
	var hits []ratelimit.Hit
	for _, name := range []string{"shadow 1", "shadow 2", "durable", "window", "log"} {
		l := &ratelimit.Limit{Prefix: name, Events: 100, Window: time.Hour, Durable: name == "durable"}
		if name == "log" {
			l.Algorithm = ratelimit.SlidingLog
		}
		hits = append(hits,
			ratelimit.Hit{Limit: l, Key: "k", Cost: 1, Apart: strings.HasPrefix(name, "shadow")})
	}
	hits = append(hits, ratelimit.Hit{Limit: conformance.InFlight("flight", 20), Key: "k", Cost: 1})
	for i := range 10 {
		hits[5].Slot = &ratelimit.Slot{}
		decisions := make([]ratelimit.Decision, 6)
		db.mu.Lock()
		before := db.trips
		db.mu.Unlock()
		if err := store.Take(context.Background(), longTime, hits, decisions); err != nil {
			t.Fatal(err)
		}
		db.mu.Lock()
		if trips := db.trips - before; trips != 1 {
			t.Errorf("request %d took %d round trips", i, trips)
		}
		db.mu.Unlock()
		for _, d := range decisions {
			if !d.Allowed {
				t.Errorf("request %d: %+v", i, decisions)
			}
		}
		store.AddSettlement(settlementOf(hits[3], decisions[3], -2)) // goes with the next request
	}
	peek := hits[3]
	peek.Peek = true
	if d := takeOne(t, store, peek); d.Remaining != 100-10-2*10 {
		t.Errorf("%d are left of the settled limit", d.Remaining)
	}
}

// The slots of a process are free when its row has expired. The process finds that out, and keeps those that
// others have not taken in the meantime.
func TestSlotsOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	stopped := newStore(t, drivers.All["pgxdb"](t, dsn), engine.Options{})
	other := newStore(t, drivers.All["pgwire"](t, dsn), engine.Options{})
	for _, durable := range []bool{false, true} {
		l := conformance.InFlight("flight", 3)
		l.Durable = durable
		var mu sync.Mutex
		lost := 0
		held := enter(t, stopped, l, 4, func() { mu.Lock(); lost++; mu.Unlock() })
		if len(held) != 3 || len(enter(t, other, l, 1, nil)) != 0 {
			t.Fatalf("%d slots of 3", len(held))
		}
		// As if it had begun long ago and been stopped for ten seconds.
		cluster.Execute(t, dsn, `UPDATE rate_limit_processes SET process = process - 1000, seen =
			'-infinity' WHERE process IN (SELECT s >> 32 FROM rate_limit_ephemeral, unnest(slots) s UNION
			SELECT s >> 32 FROM rate_limit_durable, unnest(slots) s);
			UPDATE rate_limit_ephemeral SET slots = ARRAY(SELECT s - (1000::bigint << 32) FROM unnest(slots)
			s);
			UPDATE rate_limit_durable SET slots = ARRAY(SELECT s - (1000::bigint << 32) FROM unnest(slots)
			s)`)
		taken := enter(t, other, l, 2, nil)
		if len(taken) != 2 {
			t.Fatalf("another process has %d slots of 2", len(taken))
		}
		await.Within(t, longTime, "two requests to lose their slots",
			func() bool { mu.Lock(); defer mu.Unlock(); return lost == 2 })
		awaitFree(t, other, l, 0)
		for _, s := range append(held, taken...) {
			s.Release()
		}
		awaitFree(t, other, l, 3)
		awaitFree(t, stopped, l, 3)
		if lost != 2 {
			t.Errorf("%d slots are lost", lost)
		}
	}
}
