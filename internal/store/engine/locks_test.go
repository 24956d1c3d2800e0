package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// lockedDB is a database in which another transaction holds the locks of all rows with keys that begin
// with "locked".
type lockedDB struct {
	waited atomic.Int64 // the time that statements have waited for locks
}

func (d *lockedDB) answer(ctx context.Context, statements []*pgdb.Statement) error {
	for first := 0; first < len(statements); {
		last := first
		for statements[last].Joined {
			last++
		}
		if err := d.transaction(ctx, statements[first:last+1]); err != nil {
			return err
		}
		first = last + 1
	}
	return nil
}

func (d *lockedDB) transaction(ctx context.Context, statements []*pgdb.Statement) error {
	isLocked := func(key string) bool { return strings.HasPrefix(key, "locked") }
	for _, s := range statements {
		code := ""
		if slices.ContainsFunc(keysOf(s), isLocked) {
			wait := time.Duration(s.Args[0].([]int64)[1]) * time.Millisecond
			d.waited.Add(int64(wait))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(wait):
				code = "55P03"
			}
		} else if strings.Contains(s.SQL, "(SELECT 0)") {
			code = "22012"
		}
		if code != "" {
			for _, other := range statements {
				other.Err = pgdb.ErrRolledBack
			}
			serverError(s, code, "it fails")
			return nil
		}
	}
	return admit(ctx, statements)
}

// TestLockedRowsDelayNoOthers: an open transaction has locked rows. All requests on other rows are decided in
// time, and without a delay once the locked rows are found. No worker waits for locks all the time.
func TestLockedRowsDelayNoOthers(t *testing.T) {
	for name, test := range map[string]struct {
		rows    int
		several bool
	}{
		"20 locked rows":              {20, false},
		"a locked row":                {1, false},
		"20 locked rows, two limits":  {20, true},
		"a locked row and two limits": {1, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			db := &lockedDB{}
			store := newStore(t, &fakeDB{answer: db.answer}, without)
			born := time.Now()
			var group sync.WaitGroup
			ask := func(key string, want error) {
				group.Go(func() {
					hits := fakeHits(key)
					if test.several {
						hits = fakeHits(key, "and "+key)
					}
					d := make([]ratelimit.Decision, len(hits))
					began := time.Now()
					if err := store.Take(context.Background(), 250*time.Millisecond, hits, d); !errors.Is(err,
						want) || err == nil && !allAllowed(d) {
						t.Errorf("%s: %s: %v, %+v", name, key, err, d)
					}
					took, known := time.Since(began), began.Sub(born) > 150*time.Millisecond
					if want == nil && (took > 100*time.Millisecond || known && took > 5*time.Millisecond) {
						t.Errorf("%s: %s took %v, %v after the lock", name, key, took, began.Sub(born))
					}
				})
			}
			for range 100 {
				for i := range test.rows {
					ask(fmt.Sprint("locked", i), ratelimit.ErrTimeout)
				}
				for i := range 5 {
					ask(fmt.Sprint("free", i), nil)
				}
				time.Sleep(25 * time.Millisecond)
			}
			group.Wait()
			if waited := time.Duration(db.waited.Load()); waited > 6*time.Second {
				t.Errorf("%s: statements of four workers have waited for locks for %s in 2.5 seconds", name,
					waited)
			}
			store.Close()
		})
	}
}

// TestBusyRowsAreWaitedFor: batches of other proxies lock a row one after the other. The request is decided
// within its own time, and later ones at once.
func TestBusyRowsAreWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		busy    time.Duration // the time until statements get the lock
		several bool
	}{
		"a busy row":                {busy: 140 * time.Millisecond},
		"a busy row and two limits": {busy: 140 * time.Millisecond, several: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			answer := func(ctx context.Context, statements []*pgdb.Statement) error {
				left := time.Until(began.Add(test.busy))
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(min(left, 50*time.Millisecond)):
				}
				if left <= 50*time.Millisecond {
					return admit(ctx, statements)
				}
				for _, s := range statements {
					s.Err = pgdb.ErrRolledBack
					if !s.Joined || len(keysOf(s)) > 0 {
						serverError(s, "55P03", "canceling statement due to lock timeout")
					}
				}
				return nil
			}
			store := newStore(t, &fakeDB{answer: answer}, without)
			hits := fakeHits("busy")
			if test.several {
				hits = fakeHits("busy", "and another")
			}
			take := func() error {
				return store.Take(context.Background(), 250*time.Millisecond, hits,
					make([]ratelimit.Decision, len(hits)))
			}
			if err := take(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			time.Sleep(time.Until(began.Add(250 * time.Millisecond)))
			if err := take(); err != nil {
				t.Errorf("%s, when it is free: %v", name, err)
			}
			store.Close()
		})
	}
}

// TestDecidedHitsAreNotDecidedAgain: one statement of a batch ends by its lock timeout. The
// row of a hit that was decided meanwhile is locked by then. That hit is charged once.
func TestDecidedHitsAreNotDecidedAgain(t *testing.T) {
	sent := map[string]int{}
	answer := func(ctx context.Context, statements []*pgdb.Statement) error {
		if err := admit(ctx, statements); err != nil {
			return err
		}
		for _, s := range statements {
			for _, key := range keysOf(s) {
				sent[key]++
			}
			if slices.Contains(keysOf(s), "locked") && sent["locked"] == 1 {
				serverError(s, "55P03", "canceling statement due to lock timeout")
			}
		}
		return nil
	}
	store := newStore(t, &fakeDB{answer: answer}, without)
	free, locked := callFor(false, fakeHits("free")...), callFor(false, hitOn("durable", 5, true))
	locked.Hits[0].Key = "locked"
	store.DecideBatch([]*batch.Call{free, locked})
	for _, c := range []*batch.Call{free, locked} {
		if c.Err != nil || !allAllowed(c.Decisions) {
			t.Errorf("%s: %v, %+v", c.Hits[0].Key, c.Err, c.Decisions)
		}
	}
	if sent["free"] != 1 || sent["locked"] != 2 {
		t.Errorf("charged %v", sent)
	}
}
