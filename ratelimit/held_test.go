package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	if o.Report == nil {
		o.Report = func(err error) { t.Errorf("reported: %v", err) }
	}
	store := ratelimit.NewPostgres(d, o)
	t.Cleanup(store.Close)
	createTables(t, store)
	d.batches.Store(0)
	return store, d
}

// longTime is a timeout that no test comes near.
const longTime = time.Minute

// hitOn is a hit on a limit's only key.
func hitOn(prefix string, events int64, durable bool) ratelimit.Hit {
	l := &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: events, Window: time.Hour, Durable: durable}
	return ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
}

// pair are hits on two limits, in a table each and so in a statement each.
func pair(events int64) []ratelimit.Hit {
	return []ratelimit.Hit{hitOn("p", events, false), hitOn("p", events, true)}
}

// goesThrough asks, and reports whether all limits let the request pass.
func goesThrough(t *testing.T, ctx context.Context, store *ratelimit.Postgres, hits []ratelimit.Hit) bool {
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(ctx, longTime, hits, decisions); err != nil {
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
	for name, test := range map[string]struct {
		timeout time.Duration // of the second
		o       ratelimit.PostgresOptions
	}{
		"one queue":        {longTime, ratelimit.PostgresOptions{}},
		"two queues":       {2 * longTime, ratelimit.PostgresOptions{}},
		"nothing is known": {longTime, ratelimit.PostgresOptions{MaxBlockedKeys: ratelimit.WithoutBlocked}},
	} {
		for _, order := range []string{"the first lands first", "the second lands first", "the second has given back before"} {
			t.Run(name+", "+order, func(t *testing.T) {
				store, db := openStaged(t, test.o)
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
							time.Sleep(20 * time.Millisecond) // so that its conclusion comes before, too
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
				passed := make(chan bool)
				take := func(timeout time.Duration) {
					decisions := make([]ratelimit.Decision, 2)
					if err := store.Take(context.Background(), timeout, pair(1), decisions); err != nil {
						t.Error(err)
					}
					passed <- decisions[0].Allowed && decisions[1].Allowed
				}
				go take(longTime)
				<-half
				go take(test.timeout)
				if one, other := <-passed, <-passed; one == other {
					t.Error("both passed, or neither; the quota is 1")
				}
				eventually(t, "the holders to be gone", func() bool { return store.Holders() == 0 })
			})
		}
	}
}

// refusedMeanwhile has a request be refused by x, in its second statement, while
// another holds x that is refused itself. late is called at the end of either's
// batch, once it has run. The request passes.
func refusedMeanwhile(t *testing.T, store *ratelimit.Postgres, db *staged, late func(first bool)) {
	a, x, z := hitOn("a", 5, false), hitOn("x", 1, true), hitOn("z", 1, true)
	goesThrough(t, context.Background(), store, []ratelimit.Hit{z})
	ran := db.batches.Load()
	half, held := make(chan struct{}), make(chan struct{})
	db.direct = func(batch int32, ctx context.Context, statements []*ratelimit.Statement) error {
		switch batch {
		case ran + 1:
			if err := db.DB.Run(ctx, statements[:1]); err != nil {
				return err
			}
			close(half)
			<-held
			err := db.DB.Run(ctx, statements[1:])
			late(true)
			return err
		case ran + 2:
			err := db.DB.Run(ctx, statements)
			close(held)
			late(false)
			return err
		}
		return db.DB.Run(ctx, statements)
	}
	passed := make(chan bool)
	go func() { passed <- goesThrough(t, context.Background(), store, []ratelimit.Hit{a, x}) }()
	<-half
	if goesThrough(t, context.Background(), store, []ratelimit.Hit{x, z}) {
		t.Error("z was used up")
	}
	if !<-passed {
		t.Error("refused for the sake of what was given back")
	}
}

// TestLaterHolder: a request waits also for a batch that set out after its own, and
// takes longer than three of its own would.
func TestLaterHolder(t *testing.T) {
	store, db := openStaged(t, ratelimit.PostgresOptions{})
	refusedMeanwhile(t, store, db, func(first bool) {
		if !first {
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// TestGivenBackMeanwhile: what refused a request has been given back by the time at
// which the answer arrives.
func TestGivenBackMeanwhile(t *testing.T) {
	store, db := openStaged(t, ratelimit.PostgresOptions{MaxBlockedKeys: ratelimit.WithoutBlocked})
	refused := make(chan struct{})
	refusedMeanwhile(t, store, db, func(first bool) {
		if !first {
			<-refused
			return
		}
		close(refused)
		eventually(t, "the other's batch to be gone", func() bool { return store.Holders() == 1 })
	})
}

// TestUsedUpIsAskedOnce: who is refused by a row that gives nothing back is not
// decided again, however many batches with that row are under way.
func TestUsedUpIsAskedOnce(t *testing.T) {
	store, db := openStaged(t, ratelimit.PostgresOptions{MaxBlockedKeys: ratelimit.WithoutBlocked})
	db.direct = func(_ int32, ctx context.Context, statements []*ratelimit.Statement) error {
		time.Sleep(rand.N(20 * time.Millisecond))
		return db.DB.Run(ctx, statements)
	}
	used, all := hitOn("used", 1, false), hitOn("all", 1_000_000, true)
	goesThrough(t, context.Background(), store, []ratelimit.Hit{used})
	var group sync.WaitGroup
	for i := range 20 {
		group.Add(1)
		go func() {
			defer group.Done()
			for j := range 10 {
				user := ratelimit.Hit{Limit: all.Limit, Key: fmt.Sprint(i, j), Cost: 1}
				if goesThrough(t, context.Background(), store, []ratelimit.Hit{used, all, user}) {
					t.Error("a limit was used up")
				}
			}
		}()
	}
	group.Wait()
	eventually(t, "all to be given back", func() bool { return store.Holders() == 0 })
	if n := store.Stats().GivenBack; n != 400 {
		t.Errorf("200 requests were charged for two limits, and given back %d charges", n)
	}
}

// TestRefundedOnce: a request that is refused for another's sake and gives back
// itself does that once.
func TestRefundedOnce(t *testing.T) {
	x, y, z := hitOn("x", 1, false), hitOn("y", 5, false), hitOn("z", 1, true)
	back := y
	y.Cost, back.Cost = 5, -1
	used := func(t *testing.T) (*ratelimit.Postgres, *staged) {
		store, db := openStaged(t, ratelimit.PostgresOptions{MaxBlockedKeys: ratelimit.WithoutBlocked})
		for _, h := range []ratelimit.Hit{y, z} {
			if !goesThrough(t, context.Background(), store, []ratelimit.Hit{h}) {
				t.Fatal("that is its quota")
			}
		}
		return store, db
	}
	left := func(t *testing.T, store *ratelimit.Postgres) {
		look := y
		look.Cost = 0
		if d := takeOne(t, store, look); d.Remaining != 1 {
			t.Errorf("%d were given back; want 1", d.Remaining)
		}
	}
	t.Run("in one batch", func(t *testing.T) {
		store, _ := used(t)
		store.RunBatch([]*ratelimit.Request{{Hits: []ratelimit.Hit{x, z}}, {Hits: []ratelimit.Hit{x, back}}})
		left(t, store)
	})
	t.Run("beside another", func(t *testing.T) {
		store, db := used(t)
		ran := db.batches.Load()
		charged, release := make(chan struct{}), make(chan struct{})
		db.direct = func(batch int32, ctx context.Context, statements []*ratelimit.Statement) error {
			err := db.DB.Run(ctx, statements)
			if batch == ran+1 {
				close(charged)
				<-release
			}
			return err
		}
		done := make(chan bool)
		go func() { done <- goesThrough(t, context.Background(), store, []ratelimit.Hit{x, z}) }()
		<-charged
		goesThrough(t, context.Background(), store, []ratelimit.Hit{x, back})
		close(release)
		<-done
		left(t, store)
	})
}

// TestRefusalStands: a refusal is the answer if there is none when the request is
// decided again, be it that nothing runs or one statement does not.
func TestRefusalStands(t *testing.T) {
	for _, ends := range []string{"an error", "a panic", "an error of one statement"} {
		store, db := openStaged(t, ratelimit.PostgresOptions{MaxBlockedKeys: ratelimit.WithoutBlocked, Report: func(error) {}})
		w, x, z := hitOn("w", 1, false), hitOn("x", 1, false), hitOn("z", 1, true)
		goesThrough(t, context.Background(), store, []ratelimit.Hit{z})
		ran := db.batches.Load()
		db.direct = func(batch int32, ctx context.Context, statements []*ratelimit.Statement) error {
			if batch == ran+2 && ends == "an error" {
				return errors.New("no line")
			}
			if batch == ran+2 && ends == "a panic" {
				panic("oh no")
			}
			if err := db.DB.Run(ctx, statements); err != nil {
				return err
			}
			for _, s := range statements {
				if batch == ran+2 && s.Row != nil {
					s.Err, s.Code = errors.New("out of paper"), "XX000"
				}
			}
			return nil
		}
		requests := []*ratelimit.Request{{Hits: []ratelimit.Hit{x, z}}, {Hits: []ratelimit.Hit{w, x}}}
		store.RunBatch(requests)
		for i, r := range requests {
			if r.Err != nil || !r.Decisions[0].Allowed || r.Decisions[1].Allowed {
				t.Errorf("%s: request %d: %v, %+v", ends, i, r.Err, r.Decisions)
			}
		}
		if n := db.batches.Load() - ran; n < 2 {
			t.Errorf("%s: %d batches; want the second request decided again", ends, n)
		}
		store.Close()
	}
}

// TestHangingHolder: whoever may be refused for the sake of a batch that hangs is
// told so after a quarter of his time.
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
			{100 * time.Millisecond, 350 * time.Millisecond, nil},
			{510 * time.Millisecond, 760 * time.Millisecond, nil},
			{900 * time.Millisecond, time.Second, nil}, // by then nobody holds anything
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
				retry := time.Hour - (test.until - test.at) // what is left of the window by then
				if err == nil && (decisions[0].Allowed || decisions[0].RetryAfter != retry || !decisions[1].Allowed) {
					t.Errorf("at %v: %+v; want the refusal by the first limit, for %v", test.at, decisions, retry)
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
	closed := hitOn("closed", 1, true)
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
		gone <- store.Take(ctx, longTime, hits, make([]ratelimit.Decision, 2))
	}()
	eventually(t, "what it was charged to be given back", func() bool { return db.batches.Load() == ran+3 && store.Stats().GivenBack == 1 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that is gone: %v", err)
	}
	close(release)
	group.Wait()
	eventually(t, "the holders to be gone", func() bool { return store.Holders() == 0 })
	if !goesThrough(t, context.Background(), store, hits) {
		t.Error("somebody who did not pass was charged")
	}
	if n := db.batches.Load() - ran; n != 5 {
		t.Errorf("%d batches; want the two, what each gave back, and the last", n)
	}
}

// xGoesOnce answers the batches of TestTimeToDecideAgain: the limit x grants one
// hit to the first, z none, others all. The first two take so long.
func xGoesOnce(first, second time.Duration) func(context.Context, []*ratelimit.Statement) error {
	var batches atomic.Int32
	return func(_ context.Context, statements []*ratelimit.Statement) error {
		batch := batches.Add(1)
		for _, s := range statements {
			if s.Row == nil {
				continue
			}
			for i, prefix := range s.Args[1].([]string) {
				granted := s.Args[3].([]int64)[i]
				switch {
				case prefix == "z" || prefix == "x" && batch == 2 && second > 0:
					granted = 0
				case prefix == "x":
					granted = 1
				}
				if err := s.Row(grantedRow(int64(i+1), granted, 1)); err != nil {
					return err
				}
			}
		}
		time.Sleep([]time.Duration{first, second, 0}[min(batch-1, 2)])
		return nil
	}
}

// TestTimeToDecideAgain: a request is decided again in the first half of its time,
// whether its own batch held what refused it or another.
func TestTimeToDecideAgain(t *testing.T) {
	x, y, z := hitOn("x", 1, false), hitOn("y", 1, true), hitOn("z", 1, true)
	for took, want := range map[time.Duration]bool{4 * time.Second: true, 6 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			store := ratelimit.NewPostgres(&fakeDB{answer: xGoesOnce(took, 0)}, ratelimit.PostgresOptions{CleanupProbability: -1})
			defer store.Close()
			requests := []*ratelimit.Request{{Hits: []ratelimit.Hit{x, z}}, {Hits: []ratelimit.Hit{x, y}}}
			store.RunBatch(requests) // within 10 s
			if d := requests[1].Decisions; d[0].Allowed != want || !d[1].Allowed {
				t.Errorf("after %v: %+v; want %v", took, d, want)
			}
		})
	}
	for took, want := range map[time.Duration]bool{400 * time.Millisecond: true, 540 * time.Millisecond: false} {
		synctest.Test(t, func(t *testing.T) {
			store := ratelimit.NewPostgres(&fakeDB{answer: xGoesOnce(took, 300*time.Millisecond)}, ratelimit.PostgresOptions{CleanupProbability: -1})
			defer store.Close()
			began := time.Now()
			var group sync.WaitGroup
			ask := func(want bool, at time.Duration, hits ...ratelimit.Hit) {
				defer group.Done()
				decisions := make([]ratelimit.Decision, len(hits))
				err := store.Take(context.Background(), time.Second, hits, decisions)
				if err != nil || (decisions[0].Allowed && decisions[1].Allowed) != want || time.Since(began) != at {
					t.Errorf("%v: %v, %+v at %v; want %v at %v", hits, err, decisions, time.Since(began), want, at)
				}
			}
			group.Add(2)
			go ask(false, took, x, z)
			time.Sleep(10 * time.Millisecond)
			go ask(want, min(took, 510*time.Millisecond), x, y) // it came at 10 ms
			group.Wait()
		})
	}
}

// TestMayGiveBack: a batch may give back what requests of several limits are
// charged, whoever comes to the same row after them.
func TestMayGiveBack(t *testing.T) {
	x, y := hitOn("x", 5, false), hitOn("y", 5, true)
	two, look, refund := x, x, x
	two.Cost, look.Peek, refund.Cost = 2, true, -1
	for name, test := range map[string]struct {
		want     bool
		requests [][]ratelimit.Hit
	}{
		"alone":                 {false, [][]ratelimit.Hit{{x}, {two}}},
		"of several":            {true, [][]ratelimit.Hit{{x, y}}},
		"another's after it":    {true, [][]ratelimit.Hit{{x, y}, {two}, {look}}},
		"its own look after it": {true, [][]ratelimit.Hit{{x, y, look}}},
		"another's before it":   {true, [][]ratelimit.Hit{{two}, {y, x}}},
		"on another row":        {false, [][]ratelimit.Hit{{x}, {y, hitOn("z", 5, false)}}},
		"a look, of several":    {false, [][]ratelimit.Hit{{look, y}}},
		"a refund, of several":  {false, [][]ratelimit.Hit{{refund, y}}},
	} {
		store := ratelimit.NewPostgres(&fakeDB{}, ratelimit.PostgresOptions{})
		var requests []*ratelimit.Request
		for _, hits := range test.requests {
			requests = append(requests, &ratelimit.Request{Hits: hits})
		}
		if got := store.MayGiveBack(requests, x); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
		store.Close()
	}
}

// TestTooLateToComeAgain: a request that is to come again while all its queue's
// batches hang is told of its refusal in time, and takes nobody's time who came later.
func TestTooLateToComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y, z, hang := hitOn("x", 1, false), hitOn("y", 1, true), hitOn("z", 1, true), hitOn("hang", 1, false)
		grant := xGoesOnce(200*time.Millisecond, time.Millisecond)
		store := ratelimit.NewPostgres(&fakeDB{answer: func(ctx context.Context, statements []*ratelimit.Statement) error {
			for _, s := range statements {
				if slices.Contains(s.Args[1].([]string), "hang") {
					<-ctx.Done()
					return ctx.Err()
				}
			}
			return grant(ctx, statements)
		}}, ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
		defer store.Close()
		began := time.Now()
		var group sync.WaitGroup
		ask := func(at, timeout time.Duration, hits ...ratelimit.Hit) {
			group.Add(1)
			go func() {
				defer group.Done()
				time.Sleep(at)
				decisions := make([]ratelimit.Decision, len(hits))
				err := store.Take(context.Background(), timeout, hits, decisions)
				hangs := hits[0].Limit == hang.Limit
				took := time.Since(began) - at
				switch {
				case hangs != errors.Is(err, ratelimit.ErrTimeout):
					t.Errorf("%s, at %v: %v after %v", hits[0].Limit.Prefix, at, err, took)
				case took > timeout || hits[len(hits)-1].Limit == y.Limit && took > timeout/2+patienceOfTests:
					t.Errorf("%s, at %v: an answer after %v of %v", hits[0].Limit.Prefix, at, took, timeout)
				case decisions[0].RetryAfter+took > time.Hour+patienceOfTests:
					t.Errorf("%s, at %v: %v after %v, of an hour", hits[0].Limit.Prefix, at, decisions[0].RetryAfter, took)
				}
			}()
		}
		ask(0, 2*time.Second, x, z) // in a queue of its own
		ask(10*time.Millisecond, time.Second, x, y)
		for i := range 4 {
			ask(time.Duration(150+10*i)*time.Millisecond, time.Second, hang)
		}
		ask(1100*time.Millisecond, time.Second, y)
		group.Wait()
	})
}

// patienceOfTests is more than the watch over a batch takes to look.
const patienceOfTests = 20 * time.Millisecond

// TestManyComeAgain: as many come again at once as waited, and yet batches stay
// as small as others, so that who comes later finds room.
func TestManyComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y, z := hitOn("x", 1, false), hitOn("y", 1_000_000, true), hitOn("z", 1, true)
		grant := xGoesOnce(200*time.Millisecond, time.Millisecond)
		var most atomic.Int64
		var batches atomic.Int32
		store := ratelimit.NewPostgres(&fakeDB{answer: func(ctx context.Context, statements []*ratelimit.Statement) error {
			hits := int64(0)
			for _, s := range statements {
				for i := 0; s.Row != nil && i < len(s.Args[3].([]int64)); i++ {
					hits += s.Args[3].([]int64)[i]
				}
			}
			for before := most.Load(); before < hits && !most.CompareAndSwap(before, hits); before = most.Load() {
			}
			if batches.Add(1) > 2 {
				time.Sleep(time.Millisecond)
			}
			return grant(ctx, statements)
		}}, ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
		defer store.Close()
		var group sync.WaitGroup
		ask := func(hits ...ratelimit.Hit) {
			group.Add(1)
			go func() {
				defer group.Done()
				if err := store.Take(context.Background(), 2*time.Second, hits, make([]ratelimit.Decision, len(hits))); err != nil {
					t.Error(err)
				}
			}()
		}
		ask(x, z)
		time.Sleep(10 * time.Millisecond)
		for range 3000 {
			ask(x, y)
		}
		group.Wait()
		if most.Load() > 402 {
			t.Errorf("%d hits in a batch", most.Load())
		}
	})
}

// TestBackComesFirst: what is given back is there for all that come again.
func TestBackComesFirst(t *testing.T) {
	got := ratelimit.LineUp([]string{"a"}, []string{"back", "b"}, nil, []string{"c", "d"}, []string{"back"})
	if fmt.Sprint(got) != "[back back a b c d]" {
		t.Errorf("they come again as %v", got)
	}
}

// TestAllOrNothingApart is TestAllOrNothing with statements that are late in every
// way: all the quota is used, however the batches meet.
func TestAllOrNothingApart(t *testing.T) {
	for round := range 20 {
		o := ratelimit.PostgresOptions{Flights: []int{1, 2, 4, 16}[round%4]}
		if round%3 == 0 {
			o.MaxBlockedKeys = ratelimit.WithoutBlocked
		}
		store, db := openStaged(t, o)
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
		users := []ratelimit.Hit{hitOn("u1", 10, false), hitOn("u2", 10, false), hitOn("u3", 10, false)}
		all := hitOn("all", 15, true)
		all.Limit.Algorithm = ratelimit.TokenBucket
		var admitted atomic.Int32
		var group sync.WaitGroup
		for i := range 60 {
			group.Add(1)
			go func() {
				defer group.Done()
				time.Sleep(rand.N(20 * time.Millisecond))
				if goesThrough(t, context.Background(), store, []ratelimit.Hit{users[i%3], all}) {
					admitted.Add(1)
				}
			}()
		}
		group.Wait()
		if n := admitted.Load(); n != 15 {
			t.Errorf("round %d: %d of 60 requests passed; want 15, as the quota is", round, n)
		}
		eventually(t, "the holders to be gone", func() bool { return store.Holders() == 0 })
		store.Close()
	}
}

// TestSeveralAmidFailures lets requests of several limits meet, of two queues and of
// Take, while batches fail, panic and hang and callers stop waiting: each gets his
// own answer in his time, no limit admits too much, and nothing is left over.
func TestSeveralAmidFailures(t *testing.T) {
	const timeout = 2 * time.Second
	store, db := openStaged(t, ratelimit.PostgresOptions{Report: func(error) {}})
	db.direct = func(_ int32, ctx context.Context, statements []*ratelimit.Statement) error {
		for i := range statements {
			time.Sleep(rand.N(8 * time.Millisecond))
			if err := db.DB.Run(ctx, statements[i:i+1]); err != nil {
				return err
			}
		}
		switch rand.IntN(20) {
		case 0:
			panic("chaos")
		case 1:
			return errors.New("no line")
		case 2:
			time.Sleep(60 * time.Millisecond)
		}
		return nil
	}
	var all []ratelimit.Hit
	var used [4]atomic.Int64
	for i := range used {
		h := hitOn(fmt.Sprint("l", i), int64(20+i), i%2 == 1)
		h.Limit.Algorithm = []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.TokenBucket}[i/2]
		all = append(all, h)
	}
	draw := func() (hits []ratelimit.Hit) {
		for _, i := range rand.Perm(len(all))[:1+rand.IntN(3)] {
			hits = append(hits, all[i])
		}
		return hits
	}
	take := func(decisions []ratelimit.Decision, hits []ratelimit.Hit) {
		passed := true
		for i := range hits {
			if decisions[i].Limit != hits[i].Limit.Events {
				t.Errorf("somebody else's decision: %+v for %+v", decisions[i], hits[i].Limit)
			}
			passed = passed && decisions[i].Allowed
		}
		for i := range hits {
			if passed {
				used[hits[i].Limit.Events-20].Add(1)
			}
		}
	}
	fill := func(calls []*ratelimit.Call) {
		for _, c := range calls {
			c.Hits = append(c.Hits[:0], c.Owner.([]ratelimit.Hit)...)
		}
	}
	deliver := func([]*ratelimit.Call) {
		if rand.IntN(40) == 0 {
			panic("chaos")
		}
	}
	q := store.NewQueue(timeout, fill, deliver)
	var group sync.WaitGroup
	for g := range 40 {
		group.Add(1)
		go func() {
			defer group.Done()
			c := ratelimit.NewCall()
			for range 10 {
				time.Sleep(rand.N(10 * time.Millisecond))
				hits := draw()
				if g%3 == 0 {
					c.Owner = hits
					ratelimit.Enter(q, c)
					if c.Err == nil {
						take(c.Decisions, hits)
					}
					continue
				}
				ctx, cancel := context.WithCancel(context.Background())
				if g%3 == 1 {
					time.AfterFunc(rand.N(80*time.Millisecond), cancel)
				}
				decisions := make([]ratelimit.Decision, len(hits))
				if err := store.Take(ctx, timeout, hits, decisions); err == nil {
					take(decisions, hits)
				}
				cancel()
			}
		}()
	}
	group.Wait()
	eventually(t, "the holders to be gone", func() bool { return store.Holders() == 0 })
	for i := range used {
		if n := used[i].Load(); n == 0 || n > all[i].Limit.Events {
			t.Errorf("%d passed %s, whose quota is %d", n, all[i].Limit.Prefix, all[i].Limit.Events)
		}
	}
}
