package postgres_test

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
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// locksAll answers that the rows of all keys are locked by one transaction.
func locksAll(_ context.Context, statements []*postgres.Statement) error {
	for _, s := range statements {
		switch {
		case isLockQuery(s):
			for i := range s.Args[1].([]string) {
				addRow(s, [][]byte{int8(int64(i + 1)), int8(700)})
			}
		default:
			serverError(s, "55P03", "canceling statement due to lock timeout")
		}
	}
	return nil
}

// isLockQuery reports whether a statement asks which rows are locked.
func isLockQuery(s *postgres.Statement) bool { return strings.Contains(s.SQL, "SKIP LOCKED") }

// TestKnownRefusalsStandWhileTheRowIsLocked: a key that is used up does not get an error, with
// which the caller might let it pass.
func TestKnownRefusalsStandWhileTheRowIsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{answer: refuse}
		store := newStore(t, db, postgres.Options{CleanupProbability: -1})
		several := append(fakeHits("k"), hitOn("durable", 5, true))
		takeOne(t, store, fakeHits("k")[0])
		db.set(locksAll, nil)
		for range 4 {
			time.Sleep(1100 * time.Millisecond)
			for range 2 { // the second time the lock is known
				for _, hits := range [][]ratelimit.Hit{fakeHits("k"), several} {
					d := make([]ratelimit.Decision, len(hits))
					if err := store.Take(context.Background(), time.Second, hits, d); err != nil || d[0].Allowed || d[0].Source != ratelimit.FromBlocked {
						t.Errorf("%+v, %v", d, err)
					}
				}
			}
			if _, _, err := tryOne(store, time.Second, fakeHits("other")[0]); !errors.Is(err, ratelimit.ErrTimeout) {
				t.Errorf("another key: %v", err)
			}
		}
		store.Close()
	})
}

// lockedDB is a database in which the transaction holder holds the locks of all rows with keys
// that begin with "locked". If holder is 0, no query shows it.
type lockedDB struct {
	holder int64
	waits  atomic.Int64
}

func (d *lockedDB) answer(ctx context.Context, statements []*postgres.Statement) error {
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

func (d *lockedDB) transaction(ctx context.Context, statements []*postgres.Statement) error {
	isLocked := func(key string) bool { return strings.HasPrefix(key, "locked") }
	for _, s := range statements {
		if isLockQuery(s) {
			for i, key := range s.Args[1].([]string) {
				if isLocked(key) && d.holder != 0 {
					addRow(s, [][]byte{int8(int64(i + 1)), int8(d.holder)})
				} else if isLocked(key) {
					addRow(s, [][]byte{int8(int64(i + 1)), nil}) // no row is seen
				}
			}
			return nil
		}
		code := ""
		if slices.ContainsFunc(keysOf(s), isLocked) {
			d.waits.Add(1)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(s.Args[0].([]int64)[1]) * time.Millisecond):
				code = "55P03"
			}
		} else if strings.Contains(s.SQL, "(SELECT 0)") {
			code = "22012"
		}
		if code != "" {
			for _, other := range statements {
				other.Err = postgres.ErrRolledBack
			}
			serverError(s, code, "it fails")
			return nil
		}
	}
	return admit(ctx, statements)
}

// TestLockedRowsDelayNoOthers: an open transaction has locked many rows, or has inserted one, so
// that no query shows the lock. All requests on other rows are decided in time.
func TestLockedRowsDelayNoOthers(t *testing.T) {
	for name, test := range map[string]struct {
		rows    int
		holder  int64
		several bool
	}{
		"20 locked rows":                 {20, 700, false},
		"an inserted row":                {1, 0, false},
		"20 locked rows, two limits":     {20, 700, true},
		"an inserted row and two limits": {1, 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			db := &lockedDB{holder: test.holder}
			store := newStore(t, &fakeDB{answer: db.answer}, without)
			var group sync.WaitGroup
			ask := func(key string, want error) {
				group.Go(func() {
					hits := fakeHits(key)
					if test.several {
						hits = fakeHits(key, "and "+key)
					}
					d := make([]ratelimit.Decision, len(hits))
					if err := store.Take(context.Background(), 250*time.Millisecond, hits, d); !errors.Is(err, want) || err == nil && !allAllowed(d) {
						t.Errorf("%s: %s: %v, %+v", name, key, err, d)
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
			if n := db.waits.Load(); n > 50 {
				t.Errorf("%s: %d statements have waited in vain", name, n)
			}
			store.Close()
		})
	}
}

// TestBusyRowsAreWaitedFor: batches of other proxies lock a row one after the other, or insert it.
// Each time the row is free again before it is asked who holds its lock. The request is decided
// within its own time, and later ones at once.
func TestBusyRowsAreWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		busy    time.Duration // how long the statements wait for the lock in vain
		unseen  time.Duration // how long the row cannot be seen
		several bool
	}{
		"a busy row":                {busy: 180 * time.Millisecond},
		"a busy row and two limits": {busy: 180 * time.Millisecond, several: true},
		"an inserted row":           {busy: 60 * time.Millisecond, unseen: 60 * time.Millisecond},
		"a row inserted for long":   {busy: 150 * time.Millisecond, unseen: 150 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			answer := func(ctx context.Context, statements []*postgres.Statement) error {
				if asked := statements[len(statements)-1]; isLockQuery(asked) {
					if time.Since(began) < test.unseen {
						for i := range asked.Args[1].([]string) {
							addRow(asked, [][]byte{int8(int64(i + 1)), nil})
						}
					}
					return nil
				}
				if time.Since(began) >= test.busy {
					return admit(ctx, statements)
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(50 * time.Millisecond):
				}
				for _, s := range statements {
					s.Err = postgres.ErrRolledBack
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
				return store.Take(context.Background(), 250*time.Millisecond, hits, make([]ratelimit.Decision, len(hits)))
			}
			if err := take(); (err == nil) != (test.unseen < 100*time.Millisecond) {
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

// TestManyCostsOnALockedRow: each cost is a statement, and each of them waits for the lock. The
// batch has time for the other rows.
func TestManyCostsOnALockedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, &fakeDB{answer: (&lockedDB{holder: 700}).answer}, without)
		takeOne(t, store, fakeHits("free")[0])
		limit := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 100, Window: time.Hour}
		for round := range 10 {
			var group sync.WaitGroup
			for cost := range int64(10) {
				group.Go(func() {
					h := fakeHits("free")[0]
					if cost > 0 {
						h = ratelimit.Hit{Limit: limit, Key: fmt.Sprint("locked", round), Cost: cost}
					}
					if _, _, err := tryOne(store, 250*time.Millisecond, h); (err == nil) != (cost == 0) {
						t.Errorf("round %d, cost %d: %v", round, cost, err)
					}
				})
			}
			group.Wait()
		}
		store.Close()
	})
}

// TestDecidedHitsAreNotDecidedAgain: one statement of a batch waits for a lock in vain. The
// row of a hit that was decided meanwhile is locked by then. That hit is charged once.
func TestDecidedHitsAreNotDecidedAgain(t *testing.T) {
	sent := map[string]int{}
	answer := func(ctx context.Context, statements []*postgres.Statement) error {
		if err := admit(ctx, statements); err != nil {
			return err
		}
		for _, s := range statements {
			if isLockQuery(s) {
				_ = locksAll(ctx, []*postgres.Statement{s})
			}
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
