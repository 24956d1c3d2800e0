package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestPauses: a database that fails is asked again after 50 ms, then after twice
// as long each time, up to 800 ms; calls between fail at once. Once it answers,
// all is as before.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{}
		broken := errors.New("broken")
		db.answer = func(context.Context, []*ratelimit.Statement) error { return broken }
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
		defer store.Close()
		var asked []time.Duration
		begun := time.Now()
		for time.Since(begun) < 4*time.Second {
			before := db.count()
			_, took, err := tryOne(store, time.Second, fakeHits("k")[0])
			switch {
			case db.count() > before && errors.Is(err, broken):
				asked = append(asked, time.Since(begun))
			case !errors.Is(err, ratelimit.ErrUnavailable) || took != 0:
				t.Fatalf("%v after %v", err, took)
			}
			time.Sleep(time.Millisecond)
		}
		want := []time.Duration{0, 50, 150, 350, 750, 1550, 2350, 3150, 3950}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if fmt.Sprint(asked) != fmt.Sprint(want) {
			t.Errorf("asked after %v, want %v", asked, want)
		}
		db.mu.Lock()
		db.answer = nil
		db.mu.Unlock()
		time.Sleep(time.Second)
		for range 3 {
			if _, _, err := tryOne(store, time.Second, fakeHits("k")[0]); err != nil {
				t.Error(err)
			}
		}
	})
}

// stalled is a database that answers nothing, not even about its tables.
type stalled struct{}

func (stalled) Run(ctx context.Context, statements []*ratelimit.Statement) error {
	return hangs(ctx, statements)
}
func (stalled) Exec(ctx context.Context, _ string) error { return hangs(ctx, nil) }
func (stalled) Close()                                   {}

// TestFewWaitForAHangingDatabase: while it does not answer, from the start or
// later, one request in a while waits for its timeout, and the others fail at once.
func TestFewWaitForAHangingDatabase(t *testing.T) {
	for name, db := range map[string]ratelimit.DB{"from the start": stalled{}, "later": &fakeDB{answer: hangs}} {
		synctest.Test(t, func(t *testing.T) {
			const timeout, outage = 250 * time.Millisecond, 2 * time.Minute
			store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
			var waited atomic.Int64
			var group sync.WaitGroup
			for begun := time.Now(); time.Since(begun) < outage; time.Sleep(5 * time.Millisecond) {
				group.Add(1)
				go func() {
					defer group.Done()
					switch _, took, err := tryOne(store, timeout, fakeHits("k")[0]); {
					case took > timeout:
						t.Errorf("%s: %v after %v", name, err, took)
					case took > 0:
						waited.Add(1)
					case !errors.Is(err, ratelimit.ErrUnavailable):
						t.Errorf("%s: %v at once", name, err)
					}
				}()
			}
			group.Wait()
			// Those of the first two batches, and then one every 800 ms.
			if n, want := waited.Load(), int64(100+outage/(800*time.Millisecond)); n > want || n < want/2 {
				t.Errorf("%s: %d requests waited, want about %d", name, n, want)
			}
			store.Close()
			time.Sleep(time.Minute) // a migration may still hang
		})
	}
}

// TestOneTimeoutIsNoPause: a batch that ran out of time may have met a lock, so
// only the second in a row makes the store rest.
func TestOneTimeoutIsNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{}
		db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
			if statements[0].Args[2].([]string)[0] == "locked" {
				<-ctx.Done()
				return ctx.Err()
			}
			return honest(ctx, statements)
		}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
		defer store.Close()
		for i, step := range []struct {
			key  string
			want error
		}{{"locked", ratelimit.ErrTimeout}, {"free", nil}, {"locked", ratelimit.ErrTimeout}, {"free", nil}, {"locked", ratelimit.ErrTimeout},
			{"locked", ratelimit.ErrTimeout}, {"free", ratelimit.ErrUnavailable}} {
			if _, _, err := tryOne(store, time.Second, fakeHits(step.key)[0]); !errors.Is(err, step.want) {
				t.Errorf("step %d, %s: %v, want %v", i, step.key, err, step.want)
			}
		}
		time.Sleep(50 * time.Millisecond)
		if _, _, err := tryOne(store, time.Second, fakeHits("free")[0]); err != nil {
			t.Error(err)
		}
	})
}

// TestBatches: what comes while a batch is under way goes into the next, in
// order, at most 400 hits at a time; another batch takes off beside it when it
// is late, up to Flights.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{}
		var mu sync.Mutex
		var sizes []int
		var order []string
		flying, most := 0, 0
		release := make(chan struct{})
		db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
			mu.Lock()
			keys := statements[0].Args[2].([]string)
			sizes = append(sizes, len(keys))
			order = append(order, keys...)
			flying++
			most = max(most, flying)
			mu.Unlock()
			<-release
			mu.Lock()
			flying--
			mu.Unlock()
			return honest(ctx, statements)
		}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1, Flights: 3})
		defer store.Close()
		var group sync.WaitGroup
		var want []string
		ask := func(keys ...string) {
			want = append(want, keys...)
			group.Add(1)
			go func() {
				defer group.Done()
				if err := store.Take(context.Background(), time.Minute, fakeHits(keys...), make([]ratelimit.Decision, len(keys))); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		ask("first")
		for i := range 500 {
			ask(fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
		}
		if mu.Lock(); len(sizes) != 1 || most != 1 {
			t.Errorf("before the first batch is late, there are %v", sizes)
		}
		mu.Unlock()
		time.Sleep(6 * time.Millisecond)
		ask("late")
		time.Sleep(6 * time.Millisecond)
		ask("later")
		time.Sleep(6 * time.Millisecond)
		ask("one too many")
		close(release)
		group.Wait()
		if fmt.Sprint(sizes) != "[1 400 400 203]" && fmt.Sprint(sizes) != "[1 400 400 202 1]" || most != 3 {
			t.Errorf("batches of %v, %d at once", sizes, most)
		}
		if fmt.Sprint(order) != fmt.Sprint(want) {
			t.Errorf("asked in the order %.200q", order)
		}
	})
}

// TestMigrationFails in ways that a server seldom finds.
func TestMigrationFails(t *testing.T) {
	for name, test := range map[string]struct {
		db   *migrating
		want string
	}{
		"made by others meanwhile": {&migrating{right: []bool{false, true}, exec: errors.New("exists")}, ""},
		"not made":                 {&migrating{right: []bool{false, false}, exec: errors.New("exists")}, "creating the tables"},
		"no line":                  {&migrating{run: errors.New("no line")}, "no line"},
		"an answer of no columns":  {&migrating{}, "panic"},
	} {
		var mu sync.Mutex
		var reported []error
		store := ratelimit.NewPostgres(test.db, ratelimit.PostgresOptions{CleanupProbability: -1, Report: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, err)
		}})
		store.Prepare()
		store.Prepare() // one may be under way
		err := store.Take(context.Background(), 10*time.Second, fakeHits("k"), make([]ratelimit.Decision, 1))
		// Where the attempt in the background was over by then, the store rests.
		if (err != nil) != (test.want != "") || err != nil && !errors.Is(err, ratelimit.ErrUnavailable) && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		for deadline := time.Now().Add(10 * time.Second); test.want != "" && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			mu.Lock()
			n := len(reported)
			mu.Unlock()
			if n > 0 {
				break
			}
		}
		mu.Lock()
		if (len(reported) > 0) != (test.want != "") || len(reported) > 0 && !strings.Contains(reported[0].Error(), test.want) {
			t.Errorf("%s: reported %v, want %q", name, reported, test.want)
		}
		mu.Unlock()
		store.Close()
	}
}

// migrating is a database whose tables are right or not.
type migrating struct {
	mu    sync.Mutex
	right []bool // answers to come, the last of them for good
	run   error
	exec  error
}

func (d *migrating) Run(ctx context.Context, statements []*ratelimit.Statement) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run != nil {
		return d.run
	}
	if !strings.Contains(statements[0].SQL, "to_regclass") {
		return honest(ctx, statements)
	}
	if len(d.right) == 0 {
		return statements[0].Row(nil)
	}
	answer := int4(0)
	if d.right[0] {
		answer = int4(1)
	}
	if len(d.right) > 1 {
		d.right = d.right[1:]
	}
	return statements[0].Row([][]byte{answer})
}
func (d *migrating) Exec(context.Context, string) error { return d.exec }
func (d *migrating) Close()                             {}

// TestCleanupPanics: a panic in the background is reported, and the next cleanup
// runs.
func TestCleanupPanics(t *testing.T) {
	reported := make(chan error, 100)
	db := &fakeDB{}
	db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
		if strings.Contains(statements[0].SQL, "DELETE") {
			panic("oh no")
		}
		return honest(ctx, statements)
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: 1, Report: func(err error) { reported <- err }})
	defer store.Close()
	for range 3 {
		eventually(t, "a report", func() bool {
			takeOne(t, store, fakeHits("k")[0])
			select {
			case err := <-reported:
				if !strings.Contains(err.Error(), "panic: oh no") {
					t.Errorf("reported %v", err)
				}
				return true
			case <-time.After(10 * time.Millisecond):
				return false
			}
		})
	}
}
