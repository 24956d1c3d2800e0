package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// emptyDB is a database without tables. Its zero value never answers.
type emptyDB struct {
	fakeDB
	start     time.Time
	answers   time.Duration // for how long the server answers
	locked    time.Duration // for how long another session creates the tables
	commits   bool          // whether the other session's tables are seen in part
	restoring bool
	creation  time.Duration // how long the creation takes
	failures  int           // how many creations fail

	mu      sync.Mutex
	created bool
}

func (d *emptyDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	if time.Since(d.start) >= d.answers {
		return untilTimeout(ctx, timeout, func(ctx context.Context) error { return hang(ctx, nil) })
	}
	if statements[0].SQL != schema.Locked {
		return d.fakeDB.Run(ctx, timeout, statements)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	number := map[bool]int64{true: 1}
	locked := time.Since(d.start) < d.locked
	d.created = d.created || d.locked > 0 && !locked
	statements[0].Result, statements[1].Result = nil, nil
	addRow(statements[0], int4(number[locked]))
	inPart := d.restoring || d.commits && locked
	addRow(statements[1], fmt.Appendf(nil, `{"number":%d,"in_part":%v}`, number[d.created], inPart))
	return nil
}

func (d *emptyDB) Exec(ctx context.Context, timeout time.Duration, _ string) error {
	return untilTimeout(ctx, timeout, func(ctx context.Context) error {
		select {
		case <-time.After(d.creation):
		case <-ctx.Done():
			return ctx.Err()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.failures--; d.failures >= 0 {
			return errors.New("a table of another program")
		}
		d.created = true
		return nil
	})
}

// At the first start, requests wait while tables are being created, until 5 s after the begin, and are then
// refused. After a failed attempt, during a restore, and while the server does not
// answer, they have no decision, as in an outage.
func TestRequestsWaitForTheFirstTables(t *testing.T) {
	const always, timeout = time.Hour, 240 * time.Millisecond
	for name, test := range map[string]struct {
		db   *emptyDB
		want string // the errors of requests at 0 s and 7 s, and when they have them
	}{
		"created in 3 s": {&emptyDB{answers: always, creation: 3 * time.Second},
			"decided at 3s, decided at 7s"},
		"created in 10 s": {&emptyDB{answers: always, creation: 10 * time.Second},
			"refused at 5s, refused at 7s"},
		"created by another session": {&emptyDB{answers: always, locked: 3 * time.Second},
			"decided at 3s, decided at 7s"},
		"seen in part": {&emptyDB{answers: always, locked: 3 * time.Second, commits: true},
			"decided at 3s, decided at 7s"},
		"another session in 10 s": {&emptyDB{answers: always, locked: 10 * time.Second},
			"refused at 5s, refused at 7s"},
		"fails after 1 s": {&emptyDB{answers: always, creation: time.Second, failures: 9},
			"undecided at 1s, undecided at 7.25s"},
		"a restore":       {&emptyDB{answers: always, restoring: true}, "undecided at 0s, undecided at 7s"},
		"never answers":   {&emptyDB{}, "undecided at 250ms, undecided at 7s"},
		"stops answering": {&emptyDB{answers: 1, creation: always}, "undecided at 2.4s, undecided at 7s"},
	} {
		for _, migrates := range []bool{true, false} {
			if !migrates && test.db.locked == 0 {
				continue // nobody creates the tables
			}
			synctest.Test(t, func(t *testing.T) {
				db := &emptyDB{start: time.Now(), answers: test.db.answers, locked: test.db.locked,
					commits: test.db.commits, restoring: test.db.restoring, creation: test.db.creation,
					failures: test.db.failures}
				store := openStore(t, db, engine.Options{CleanupProbability: -1, DisableMigration: !migrates},
					nil)
				first := db.take(t, store, timeout)
				time.Sleep(7*time.Second - time.Since(db.start))
				if got := first + ", " + db.take(t, store, timeout); got != test.want {
					t.Errorf("%s, migrates %v: %s, want %s", name, migrates, got, test.want)
				}
			})
		}
	}
}

// At most 1,000 requests wait for tables.
func TestFewRequestsWaitForTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &emptyDB{start: time.Now(), answers: time.Hour, creation: 3 * time.Second}
		store := openStore(t, db, engine.Options{CleanupProbability: -1}, nil)
		results := make(chan string, 1100)
		for range cap(results) {
			go func() { results <- db.take(t, store, time.Second) }()
		}
		counts := map[string]int{}
		for range cap(results) {
			counts[<-results]++
		}
		if got, want := fmt.Sprint(counts), "map[decided at 3s:1000 refused at 0s:100]"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// take charges a hit, and returns whether it was decided, and when.
func (d *emptyDB) take(t *testing.T, store ratelimit.Store, timeout time.Duration) string {
	err := store.Take(t.Context(), timeout, fakeHits("k"), make([]ratelimit.Decision, 1))
	result := "undecided"
	switch {
	case err == nil:
		result = "decided"
	case errors.Is(err, ratelimit.ErrOverloaded):
		result = "refused"
	}
	return fmt.Sprint(result, " at ", time.Since(d.start).Round(50*time.Millisecond))
}
