package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// staged runs the batches that decide as a test directs.
type staged struct {
	ratelimit.DB
	batches atomic.Int32
	direct  func(batch int32, ctx context.Context, statements []*ratelimit.Statement) error
}

func (d *staged) Run(ctx context.Context, statements []*ratelimit.Statement) error {
	if strings.Contains(statements[0].SQL, "to_regclass") {
		return d.DB.Run(ctx, statements)
	}
	return d.direct(d.batches.Add(1), ctx, statements)
}

// openStaged opens a store on a database whose tables are there.
func openStaged(t *testing.T, o ratelimit.PostgresOptions) (*ratelimit.Postgres, *staged) {
	t.Helper()
	db, err := pgxdb.Open(cluster.Open(t), pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := &staged{DB: db}
	d.direct = func(_ int32, ctx context.Context, statements []*ratelimit.Statement) error {
		return db.Run(ctx, statements)
	}
	o.CleanupProbability = -1
	o.Report = func(err error) { t.Errorf("reported: %v", err) }
	store := ratelimit.NewPostgres(d, o)
	t.Cleanup(store.Close)
	createTables(t, store)
	d.batches.Store(0)
	return store, d
}

// pair are hits on two limits, in a table each and so in a statement each.
func pair(events int64) []ratelimit.Hit {
	var hits []ratelimit.Hit
	for _, durable := range []bool{false, true} {
		l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: events, Window: time.Hour, Durable: durable}
		hits = append(hits, ratelimit.Hit{Limit: l, Key: "k", Cost: 1})
	}
	return hits
}

// goesThrough asks, and reports whether all limits let the request pass.
func goesThrough(t *testing.T, ctx context.Context, store *ratelimit.Postgres, hits []ratelimit.Hit) bool {
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(ctx, 10*time.Second, hits, decisions); err != nil {
		t.Error(err)
	}
	all := true
	for i := range decisions {
		all = all && decisions[i].Allowed
	}
	return all
}

// TestRefusedByEachOther: of two requests in flight each has what the other lacks.
// One of them passes, in whichever order their batches land and give back.
func TestRefusedByEachOther(t *testing.T) {
	for _, order := range []string{"the first lands first", "the second lands first", "the second has given back before"} {
		t.Run(order, func(t *testing.T) {
			store, db := openStaged(t, ratelimit.PostgresOptions{})
			half, second, third, landed := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
			db.direct = func(batch int32, ctx context.Context, statements []*ratelimit.Statement) error {
				switch batch {
				case 1:
					if len(statements) != 2 {
						t.Errorf("%d statements; want one a table", len(statements))
					}
					if err := db.DB.Run(ctx, statements[:1]); err != nil {
						return err
					}
					close(half)
					<-second
					if order == "the second has given back before" {
						<-third
					}
					defer close(landed)
					return db.DB.Run(ctx, statements[1:])
				case 2:
					err := db.DB.Run(ctx, statements)
					close(second)
					if order == "the first lands first" {
						<-landed
						time.Sleep(20 * time.Millisecond)
					}
					return err
				case 3:
					defer close(third)
					if order == "the second lands first" {
						<-landed
					}
				}
				return db.DB.Run(ctx, statements)
			}
			var admitted atomic.Int32
			var group sync.WaitGroup
			take := func() {
				defer group.Done()
				if goesThrough(t, context.Background(), store, pair(1)) {
					admitted.Add(1)
				}
			}
			group.Add(2)
			go take()
			<-half
			go take()
			group.Wait()
			if n := admitted.Load(); n != 1 {
				t.Errorf("%d of 2 requests passed; want 1, as the quota is", n)
			}
		})
	}
}

// TestHangingHolder: whoever is refused for the sake of a batch that hangs is told
// so in his time, and at once when it is known to hang.
func TestHangingHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{}
		db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
			if db.count() == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			if len(statements) < 2 || statements[0].Row == nil {
				return honest(ctx, statements)
			}
			if err := rows(grantedRow(1, 0, 1))(ctx, statements[:1]); err != nil {
				return err
			}
			return honest(ctx, statements[1:])
		}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
		defer store.Close()
		hits := pair(1)
		began := time.Now()
		var group sync.WaitGroup
		for _, test := range []struct {
			at, until time.Duration
			want      error
		}{
			{0, time.Second, ratelimit.ErrTimeout},
			{100 * time.Millisecond, time.Second, nil},
			{240 * time.Millisecond, time.Second, nil},
			{260 * time.Millisecond, 260 * time.Millisecond, nil},
			{900 * time.Millisecond, 900 * time.Millisecond, nil},
		} {
			group.Add(1)
			go func() {
				defer group.Done()
				time.Sleep(test.at)
				decisions := make([]ratelimit.Decision, 2)
				err := store.Take(context.Background(), time.Second, hits, decisions)
				if took := time.Since(began); !errors.Is(err, test.want) || took != test.until {
					t.Errorf("at %v: %v at %v; want %v at %v", test.at, err, took, test.want, test.until)
				}
				if err == nil && (decisions[0].Allowed || decisions[0].RetryAfter <= 0 || !decisions[1].Allowed) {
					t.Errorf("at %v: %+v; want the refusal by the first limit", test.at, decisions)
				}
			}()
		}
		group.Wait()
	})
}

// TestForsakenWaiter: a request whose caller is gone while it waits for another's
// batch to land is charged nothing.
func TestForsakenWaiter(t *testing.T) {
	store, db := openStaged(t, ratelimit.PostgresOptions{MaxBlockedKeys: ratelimit.WithoutBlocked})
	hits := pair(1)
	closed := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "closed", Algorithm: ratelimit.FixedWindow, Events: 1, Window: time.Hour, Durable: true}, Key: "k", Cost: 1}
	if !goesThrough(t, context.Background(), store, []ratelimit.Hit{closed}) {
		t.Fatal("its quota is 1")
	}
	half, release := make(chan struct{}), make(chan struct{})
	ran := db.batches.Load()
	db.direct = func(batch int32, ctx context.Context, statements []*ratelimit.Statement) error {
		if batch != ran+1 {
			return db.DB.Run(ctx, statements)
		}
		if err := db.DB.Run(ctx, statements[:1]); err != nil {
			return err
		}
		close(half)
		<-release
		return db.DB.Run(ctx, statements[1:])
	}
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		if goesThrough(t, context.Background(), store, []ratelimit.Hit{hits[0], closed}) {
			t.Error("one of its limits was used up")
		}
	}()
	<-half
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error)
	go func() {
		gone <- store.Take(ctx, 10*time.Second, hits, make([]ratelimit.Decision, 2))
	}()
	eventually(t, "what it was charged to be given back", func() bool { return db.batches.Load() == ran+3 && store.Stats().GivenBack == 1 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that is gone: %v", err)
	}
	close(release)
	group.Wait()
	if !goesThrough(t, context.Background(), store, hits) {
		t.Error("somebody who did not pass was charged")
	}
}

// TestAllOrNothingApart is TestAllOrNothing with statements that are late in every
// way: all the quota is used, however the batches meet.
func TestAllOrNothingApart(t *testing.T) {
	for round := range 20 {
		store, db := openStaged(t, ratelimit.PostgresOptions{})
		db.direct = func(_ int32, ctx context.Context, statements []*ratelimit.Statement) error {
			for i := range statements {
				time.Sleep(rand.N(12 * time.Millisecond))
				if err := db.DB.Run(ctx, statements[i:i+1]); err != nil {
					return err
				}
			}
			time.Sleep(rand.N(3 * time.Millisecond))
			return nil
		}
		user := &ratelimit.Limit{Prefix: "user", Algorithm: ratelimit.FixedWindow, Events: 10, Window: time.Hour}
		all := &ratelimit.Limit{Prefix: "all", Algorithm: ratelimit.TokenBucket, Events: 15, Window: time.Hour, Durable: true}
		var admitted atomic.Int32
		var group sync.WaitGroup
		for i := range 60 {
			group.Add(1)
			go func() {
				defer group.Done()
				time.Sleep(rand.N(20 * time.Millisecond))
				if goesThrough(t, context.Background(), store, []ratelimit.Hit{{Limit: user, Key: fmt.Sprint(i % 3), Cost: 1}, {Limit: all, Cost: 1}}) {
					admitted.Add(1)
				}
			}()
		}
		group.Wait()
		if n := admitted.Load(); n != 15 {
			t.Errorf("round %d: %d of 60 requests passed; want 15, as the quota is", round, n)
		}
		store.Close()
	}
}
