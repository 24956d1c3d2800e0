package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// tryOne asks a store about one hit, with a timeout, and says how long it took.
func tryOne(store ratelimit.Store, timeout time.Duration, h ratelimit.Hit) (ratelimit.Decision, time.Duration, error) {
	d := make([]ratelimit.Decision, 1)
	started := time.Now()
	err := store.Take(context.Background(), timeout, []ratelimit.Hit{h}, d)
	return d[0], time.Since(started), err
}

// lateness is how much later than its timeout a call may return on a machine
// that is busy with other tests. On time is 50 ms, which one in some must be.
const lateness = 2 * time.Second

// TestLockedRow: a row that somebody else has locked costs those who ask about
// it their timeout, and nobody else. Once it is free, all is well at once.
func TestLockedRow(t *testing.T) {
	s := newSite(t)
	store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
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
	eventually(t, "a call to return within 50 ms of its timeout", func() bool {
		_, took, err := tryOne(store, 150*time.Millisecond, hit("locked"))
		return errors.Is(err, ratelimit.ErrTimeout) && took < 200*time.Millisecond
	})
	if served < asked/2 {
		t.Errorf("of other rows' %d calls, only %d were served", asked, served)
	}
	s.exec("COMMIT")
	eventually(t, "the store to recover", func() bool {
		_, _, err := tryOne(store, 5*time.Second, hit("locked"))
		return err == nil
	})
	d, took, err := tryOne(store, 5*time.Second, hit("locked"))
	if err != nil || took > lateness {
		t.Errorf("when the lock is gone: %+v, %v after %v", d, err, took)
	}
}

// TestServerStopsAndStarts: while there is no server, calls fail at once, and
// soon after its return they are answered again, with what was counted before.
func TestServerStopsAndStarts(t *testing.T) {
	c := cluster.Private(t, cluster.Options{})
	db, err := pgxdb.Open(c.DSN("postgres"), pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
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
		h.Cost = 0
		eventually(t, "the store to notice the server's return", func() bool {
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
	db, err := pgxdb.Open(c.DSN("postgres"), pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
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
	eventually(t, "the store to notice that the server goes on", func() bool {
		_, _, err := tryOne(store, 5*time.Second, fakeHits("k")[0])
		return err == nil
	})
}

// TestCancel: a caller who stops waiting is let go at once; the others in the
// batch are not.
func TestCancel(t *testing.T) {
	s := newSite(t)
	store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
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
			t.Errorf("a caller who waited: %v", err)
		}
	}
}

// TestCloseDuringCalls: all calls return, with a decision or an error.
func TestCloseDuringCalls(t *testing.T) {
	before := runtime.NumGoroutine()
	s := newSite(t)
	for range 5 {
		store := s.store("", ratelimit.PostgresOptions{CleanupProbability: 1})
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
	if len(s.reported) > 0 {
		t.Errorf("reported: %v", s.reported)
	}
	goroutines(t, before)
}

// goroutines waits until no more are left than before, plus those of a test's
// own connection.
func goroutines(t *testing.T, before int) {
	t.Helper()
	eventually(t, "goroutines to end", func() bool {
		if runtime.NumGoroutine() <= before+2 {
			return true
		}
		time.Sleep(20 * time.Millisecond)
		return false
	})
}

// TestReportPanics: who listens to failures cannot end the program, and what
// fails later is reported again.
func TestReportPanics(t *testing.T) {
	var mu sync.Mutex
	reports := map[string]int{}
	report := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, what := range []string{"deleting expired rows", "giving back", "creating the tables", "looking for the tables"} {
			if strings.Contains(err.Error(), what) {
				reports[what]++
			}
		}
		panic("I did not expect this")
	}
	seen := func(what string, least int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return reports[what] >= least
		}
	}
	db := &fakeDB{}
	db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
		switch sql := statements[0].SQL; {
		case strings.Contains(sql, "DELETE"), strings.Contains(sql, "UPDATE rate_limit_ephemeral"):
			return errors.New("no line")
		case len(statements[0].Args[2].([]string)) == 2:
			return rows(grantedRow(1, 1, 1), grantedRow(2, 0, 5))(ctx, statements)
		}
		return honest(ctx, statements)
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: 1, Report: report, MaxBlockedKeys: ratelimit.WithoutBlocked})
	defer store.Close()
	for round := 1; round <= 3; round++ {
		eventually(t, "a decision", func() bool {
			return store.Take(context.Background(), time.Second, fakeHits("k"), make([]ratelimit.Decision, 1)) == nil
		})
		eventually(t, "a report of the cleanup", seen("deleting expired rows", round))
		eventually(t, "a refusal", func() bool {
			return store.Take(context.Background(), time.Second, fakeHits("a", "b"), make([]ratelimit.Decision, 2)) == nil
		})
		eventually(t, "a report of the give-back", seen("giving back", round))
	}
	// The migration fails in a goroutine of its own.
	for _, what := range []string{"looking for the tables", "creating the tables"} {
		failing := ratelimit.NewPostgres(failingMigration{what}, ratelimit.PostgresOptions{Report: report})
		err := failing.Take(context.Background(), time.Second, fakeHits("k"), make([]ratelimit.Decision, 1))
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("a migration that fails: %v", err)
		}
		eventually(t, "a report of the migration", seen(what, 1))
		failing.Close()
	}
}

// failingMigration is a database where a part of the migration fails.
type failingMigration struct{ what string }

func (d failingMigration) Run(_ context.Context, statements []*ratelimit.Statement) error {
	if d.what == "looking for the tables" {
		statements[0].Err = errors.New("looking is forbidden")
	}
	return nil
}
func (failingMigration) Exec(context.Context, string) error {
	return errors.New("creating is forbidden")
}
func (failingMigration) Close() {}
