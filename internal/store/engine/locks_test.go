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

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// lockedDB is a database in which another transaction has locked all rows with keys that begin with "locked".
type lockedDB struct {
	waited atomic.Int64 // nanoseconds that statements have waited for locks
}

func (d *lockedDB) answer(ctx context.Context, statements []*pgdb.Statement) error {
	for first := 0; first < len(statements); {
		last := first
		for statements[last].Joined {
			last++
		}
		if err := d.runTransaction(ctx, statements[first:last+1]); err != nil {
			return err
		}
		first = last + 1
	}
	return nil
}

func (d *lockedDB) runTransaction(ctx context.Context, statements []*pgdb.Statement) error {
	isLocked := func(key string) bool { return strings.HasPrefix(key, "locked") }
	for _, s := range statements {
		// Each statement of a take sets its lock timeout, in milliseconds, from its first argument.
		if slices.ContainsFunc(statementKeys(s), isLocked) {
			wait := time.Duration(s.Args[0].([]int64)[1]) * time.Millisecond
			d.waited.Add(int64(wait))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(wait):
			}
			for _, other := range statements {
				other.Err = pgdb.ErrRolledBack
			}
			failStatement(s, pg.LockNotAvailable, "it fails")
			return nil
		}
	}
	return admit(ctx, statements)
}

// While an open transaction has locked rows, requests on other rows are decided within 100 ms, and within 5
// ms once the store has detected the locked rows. The workers of the store spend only a part of their time on
// waiting for locks.
func TestLockedRowsDelayNoOthers(t *testing.T) {
	const (
		timeout     = 250 * time.Millisecond
		detection   = 150 * time.Millisecond // after it, the store has detected the locked rows
		maxWait     = 100 * time.Millisecond // bounds requests on other rows before detection
		maxOverhead = 5 * time.Millisecond   // bounds requests on other rows after detection
	)
	for name, test := range map[string]struct {
		rows    int
		several bool // two limits
	}{
		"20 locked rows":             {rows: 20},
		"a locked row":               {rows: 1},
		"20 locked rows, two limits": {rows: 20, several: true},
		"a locked row, two limits":   {rows: 1, several: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			db := &lockedDB{}
			store := newEngine(t, &fakeDB{answer: db.answer}, bareOptions)
			born := time.Now()
			var group sync.WaitGroup
			take := func(key string, want error) {
				group.Go(func() {
					hits := fakeHits(key)
					if test.several {
						hits = fakeHits(key, "and "+key)
					}
					d := make([]ratelimit.Decision, len(hits))
					start := time.Now()
					err := store.Take(t.Context(), timeout, hits, d)
					if !errors.Is(err, want) || err == nil && !allAllowed(d) {
						t.Errorf("%s: %s: %v, %+v; want error %v", name, key, err, d, want)
					}
					bound := maxWait
					if start.Sub(born) > detection {
						bound = maxOverhead
					}
					if took := time.Since(start); want == nil && took > bound {
						t.Errorf("%s: %s took %v, want at most %v", name, key, took, bound)
					}
				})
			}
			for range 100 {
				for i := range test.rows {
					take(fmt.Sprint("locked", i), ratelimit.ErrTimeout)
				}
				for i := range 5 {
					take(fmt.Sprint("free", i), nil)
				}
				time.Sleep(25 * time.Millisecond)
			}
			group.Wait()
			if waited := time.Duration(db.waited.Load()); waited > 6*time.Second {
				t.Errorf("%s: four workers waited for locks for %s in 2.5s, want at most 6s", name, waited)
			}
			store.Close()
		})
	}
}

// If batches of other proxies lock a row one after the other, a request on the row is decided within its
// timeout. When the row is free again, requests are decided immediately.
func TestRequestWaitsForBusyRow(t *testing.T) {
	const busy = 140 * time.Millisecond // the time until statements get the lock
	for _, keys := range [][]string{{"busy"}, {"busy", "and another"}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			answer := func(ctx context.Context, statements []*pgdb.Statement) error {
				left := time.Until(start.Add(busy))
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
					if !s.Joined || len(statementKeys(s)) > 0 {
						failStatement(s, pg.LockNotAvailable, "canceling statement due to lock timeout")
					}
				}
				return nil
			}
			store := newEngine(t, &fakeDB{answer: answer}, bareOptions)
			hits := fakeHits(keys...)
			take := func() error {
				return store.Take(t.Context(), 250*time.Millisecond, hits,
					make([]ratelimit.Decision, len(hits)))
			}
			if err := take(); err != nil {
				t.Errorf("%q: error %v, want none", keys, err)
			}
			time.Sleep(time.Until(start.Add(250 * time.Millisecond)))
			if err := take(); err != nil {
				t.Errorf("%q, when the row is free: error %v, want none", keys, err)
			}
			store.Close()
		})
	}
}
