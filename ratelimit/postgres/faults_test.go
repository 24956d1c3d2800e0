package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestLockedRow: another session has locked a row. Requests on this row fail after their
// timeout, and no others. Once the row is free, all requests are decided at once.
func TestLockedRow(t *testing.T) {
	s := newSite(t)
	store := s.store(postgres.Options{CleanupProbability: -1})
	hit := func(key string) ratelimit.Hit {
		return ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}, Key: key, Cost: 1}
	}
	takeOne(t, store, hit("locked"))
	s.exec("BEGIN; SELECT FROM rate_limit_ephemeral WHERE key = 'locked' FOR UPDATE")
	served, asked := 0, 0
	var group sync.WaitGroup
	var mu sync.Mutex
	for range 6 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 3 {
				_, took, err := tryOne(store, 150*time.Millisecond, hit("locked"))
				if !errors.Is(err, ratelimit.ErrTimeout) && !errors.Is(err, ratelimit.ErrUnavailable) || took > 150*time.Millisecond+lateness {
					t.Errorf("of the locked row: %v after %v", err, took)
				}
			}
		}()
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range 10 {
				_, took, err := tryOne(store, 5*time.Second, hit(fmt.Sprint("free", i)))
				mu.Lock()
				asked++
				if err == nil {
					served++
				}
				mu.Unlock()
				if took > lateness {
					t.Errorf("of another row: %v after %v", err, took)
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
	group.Wait()
	await.Within(t, 20*time.Second, "a call to return within 50 ms of its timeout", func() bool {
		_, took, err := tryOne(store, 150*time.Millisecond, hit("locked"))
		return errors.Is(err, ratelimit.ErrTimeout) && took < 200*time.Millisecond
	})
	if served < asked/2 {
		t.Errorf("of other rows' %d calls, only %d were served", asked, served)
	}
	s.exec("COMMIT")
	await.Within(t, 20*time.Second, "the store to recover", func() bool {
		_, _, err := tryOne(store, 5*time.Second, hit("locked"))
		return err == nil
	})
	d, took, err := tryOne(store, 5*time.Second, hit("locked"))
	if err != nil || took > lateness {
		t.Errorf("when the lock is gone: %+v, %v after %v", d, err, took)
	}
}

// TestInsertedRow: another transaction has inserted a row and is open. Once that is known,
// requests on the row fail at once, and other rows are decided. When the transaction ends, the
// row is decided, too.
func TestInsertedRow(t *testing.T) {
	s := newSite(t)
	store := s.store(without)
	hit := func(key string) ratelimit.Hit {
		return ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour}, Key: key, Cost: 1}
	}
	takeOne(t, store, hit("free"))
	s.exec("BEGIN; INSERT INTO rate_limit_ephemeral SELECT (jsonb_populate_record(r, '{\"key\": \"young\"}')).* FROM rate_limit_ephemeral r")
	const limit = 2 * time.Second
	await.Within(t, 20*time.Second, "a request on the row to fail long before its timeout", func() bool {
		_, took, err := tryOne(store, limit, hit("young"))
		if !errors.Is(err, ratelimit.ErrTimeout) {
			t.Errorf("while the transaction is open: %v", err)
		}
		return took < limit/2
	})
	takeOne(t, store, hit("free"))
	s.exec("COMMIT")
	await.Within(t, 20*time.Second, "the row to be decided", func() bool {
		_, _, err := tryOne(store, limit, hit("young"))
		return err == nil
	})
}

// TestServerStopsAndStarts: while there is no server, calls fail at once, and
// soon after its return they are answered again, with what was counted before.
func TestServerStopsAndStarts(t *testing.T) {
	c := cluster.Private(t, cluster.Options{})
	store := newStore(t, drivers.All["pgwire"](t, c.DSN("postgres")), postgres.Options{CleanupProbability: -1})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Hour, Durable: true, SynchronousCommit: true}
	h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
	if d := takeOne(t, store, h); d.Remaining != 2 {
		t.Fatal(d)
	}
	for name, stop := range map[string]func() error{"stopped": c.Stop, "killed": c.Kill} {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, took, err := tryOne(store, 250*time.Millisecond, h); err == nil || took > lateness {
				t.Fatalf("%s: %v after %v", name, err, took)
			}
		}
		// By now it is known, and costs nothing.
		unavailable := 0
		for range 200 {
			_, _, err := tryOne(store, 250*time.Millisecond, h)
			if errors.Is(err, ratelimit.ErrUnavailable) {
				unavailable++
			}
		}
		if unavailable < 150 {
			t.Errorf("%s: only %d of 200 calls knew at once that the database does not answer", name, unavailable)
		}
		if err := c.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		returned := time.Now()
		h.Peek = true
		await.Within(t, 20*time.Second, "the store to notice the server's return", func() bool {
			d, _, err := tryOne(store, 5*time.Second, h)
			if err == nil && d.Remaining != 2 {
				t.Fatalf("%s: what was counted is gone: %+v", name, d)
			}
			return err == nil
		})
		if took := time.Since(returned); took > time.Second+lateness {
			t.Errorf("%s: noticed the server's return after %v", name, took)
		}
	}
}

// TestServerHangs: calls to a server that does not answer end with their
// timeout, then at once; and it is noticed when the server goes on.
func TestServerHangs(t *testing.T) {
	c := cluster.Private(t, cluster.Options{})
	store := newStore(t, drivers.All["pgwire"](t, c.DSN("postgres")), postgres.Options{CleanupProbability: -1})
	takeOne(t, store, fakeHits("k")[0])
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	timeouts, unavailable := 0, 0
	for range 30 {
		_, took, err := tryOne(store, 100*time.Millisecond, fakeHits("k")[0])
		switch {
		case errors.Is(err, ratelimit.ErrTimeout):
			timeouts++
		case errors.Is(err, ratelimit.ErrUnavailable):
			unavailable++
			time.Sleep(10 * time.Millisecond)
		default:
			t.Fatalf("a server that hangs: %v", err)
		}
		if took > 100*time.Millisecond+lateness {
			t.Errorf("a timeout of 100 ms took %v", took)
		}
	}
	if timeouts == 0 || unavailable < 10 {
		t.Errorf("%d calls waited, %d knew better", timeouts, unavailable)
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	await.Within(t, 20*time.Second, "the store to notice that the server goes on", func() bool {
		_, _, err := tryOne(store, 5*time.Second, fakeHits("k")[0])
		return err == nil
	})
}

// TestCancel: a caller that stops waiting returns at once. The others in the batch go on.
func TestCancel(t *testing.T) {
	s := newSite(t)
	store := s.store(postgres.Options{CleanupProbability: -1})
	takeOne(t, store, fakeHits("k")[0])
	s.exec("BEGIN; LOCK TABLE rate_limit_ephemeral IN ACCESS EXCLUSIVE MODE")
	others := make(chan error, 4)
	for range 4 {
		go func() {
			others <- store.Take(context.Background(), 20*time.Second, fakeHits("k"), make([]ratelimit.Decision, 1))
		}()
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		started := time.Now()
		err := store.Take(ctx, 20*time.Second, fakeHits("k"), make([]ratelimit.Decision, 1))
		if took := time.Since(started); !errors.Is(err, context.DeadlineExceeded) || took > lateness {
			t.Errorf("a caller with 30 ms to spare: %v after %v", err, took)
		}
		err = store.Reset(ctx, 20*time.Second, fakeHits("k"))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller without any time: %v", err)
		}
		cancel()
	}
	s.exec("COMMIT")
	for range 4 {
		if err := <-others; err != nil {
			t.Errorf("a caller that waited: %v", err)
		}
	}
}

// TestCloseDuringCalls: all calls return, with a decision or an error.
func TestCloseDuringCalls(t *testing.T) {
	before := runtime.NumGoroutine()
	s := newSite(t)
	for range 5 {
		store := s.store(postgres.Options{CleanupProbability: 1})
		var group sync.WaitGroup
		for i := range 16 {
			group.Add(1)
			go func() {
				defer group.Done()
				for {
					hits := append(fakeHits(fmt.Sprint(i)), ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "q", Events: 3, Window: time.Hour}, Key: "q", Cost: 1})
					err := store.Take(context.Background(), 2*time.Second, hits, make([]ratelimit.Decision, 2))
					if errors.Is(err, ratelimit.ErrClosed) {
						return
					}
					if err != nil && !strings.Contains(err.Error(), "closed") && !errors.Is(err, ratelimit.ErrUnavailable) {
						t.Errorf("at the store's end: %v", err)
					}
				}
			}()
		}
		time.Sleep(50 * time.Millisecond)
		closed := make(chan struct{})
		go func() {
			store.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(20 * time.Second):
			t.Fatal("Close does not return")
		}
		group.Wait()
	}
	s.nothingReported()
	goroutines(t, before)
}

// goroutines waits until no more are left than before, plus those of a test's
// own connection.
func goroutines(t *testing.T, before int) {
	t.Helper()
	await.Within(t, 20*time.Second, "goroutines to end", func() bool {
		if runtime.NumGoroutine() <= before+2 {
			return true
		}
		time.Sleep(20 * time.Millisecond)
		return false
	})
}

// chaosDB fails, panics, hangs and delays at random.
type chaosDB struct{ postgres.DB }

func (d chaosDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	time.Sleep(rand.N(8 * time.Millisecond))
	if err := d.DB.Run(ctx, statements); err != nil {
		return err
	}
	switch rand.IntN(40) {
	case 0:
		panic("chaos")
	case 1:
		return errors.New("no line")
	case 2:
		time.Sleep(60 * time.Millisecond)
	}
	return nil
}

// TestSeveralLimitsAmidFailures sends requests of several limits through a queue and Take
// while batches fail, panic and hang and callers stop waiting: each caller gets the decisions
// on its own hits, and no limit admits too much.
func TestSeveralLimitsAmidFailures(t *testing.T) {
	s := newSite(t)
	s.exec(postgres.TableSQL)
	var all []ratelimit.Hit
	var used [4]atomic.Int64
	for i := range used {
		h := hitOn(fmt.Sprint("l", i), int64(40+i), i%2 == 1)
		h.Limit.Algorithm, h.Limit.Window = []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.TokenBucket}[i/2], 365*24*time.Hour
		all = append(all, h)
	}
	note := func(hits []ratelimit.Hit, decisions []ratelimit.Decision) {
		for i := range hits {
			if decisions[i].Limit != hits[i].Limit.Events {
				t.Errorf("the decision %+v for %+v", decisions[i], hits[i].Limit)
			}
			if allAllowed(decisions) {
				used[hits[i].Limit.Events-40].Add(1)
			}
		}
	}
	for range 2 {
		store := s.storeOn(chaosDB{s.db("")}, postgres.Options{CleanupProbability: -1, DisableMigration: true})
		q := newCallers(store, 2*time.Second)
		var group sync.WaitGroup
		for g := range 40 {
			group.Go(func() {
				for range 10 {
					time.Sleep(rand.N(10 * time.Millisecond))
					var hits []ratelimit.Hit
					for _, i := range rand.Perm(len(all))[:1+rand.IntN(3)] {
						hits = append(hits, all[i])
					}
					if g%3 == 0 {
						if d, err := q.ask(hits...); err == nil {
							note(hits, d)
						}
						continue
					}
					ctx, cancel := context.WithCancel(context.Background())
					if g%3 == 1 {
						time.AfterFunc(rand.N(80*time.Millisecond), cancel)
					}
					decisions := make([]ratelimit.Decision, len(hits))
					if err := store.Take(ctx, 2*time.Second, hits, decisions); err == nil {
						note(hits, decisions)
					}
					cancel()
				}
			})
		}
		group.Wait()
		store.Close()
	}
	for i := range used {
		if n := used[i].Load(); n == 0 || n > all[i].Limit.Events {
			t.Errorf("%d passed %s, which has a quota of %d", n, all[i].Limit.Prefix, all[i].Limit.Events)
		}
	}
	s.noLocks()
}
