package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/schema"
)

// tables makes the two tables of counts what they must be, once, and again if they are
// dropped. Afterwards it does the same for the tables of the policy, for which no decision
// waits.
//
// States: ready; a migration is under way (migration is set); the last one failed (failure
// is set), and none is started before next.
type tables struct {
	server   *server
	disabled bool // the operator makes the tables
	report   func(error)

	ready int32 // 1 if the tables are as they must be; atomic, so that a batch need not take the mutex

	mu        sync.Mutex      // guards all that follows
	migration context.Context // ends with the migration that is under way
	failure   error
	pause     time.Duration
	next      time.Time
}

const (
	// migrationTimeout bounds one attempt. Another process may have the advisory lock
	// for as long.
	migrationTimeout = 30 * time.Second

	// firstPause and longestPause bound the time between two attempts that fail.
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
)

// missing notes that the tables are not there any more.
func (t *tables) missing() {
	if !t.disabled {
		atomic.StoreInt32(&t.ready, 0)
	}
}

// start starts a migration in the background, if one is due.
func (t *tables) start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startLocked()
}

// wait waits until the tables are as they must be.
func (t *tables) wait(ctx context.Context) error {
	t.mu.Lock()
	t.startLocked()
	if atomic.LoadInt32(&t.ready) == 1 {
		t.mu.Unlock()
		return nil
	}
	migration := t.migration
	failure := t.failure
	t.mu.Unlock()
	if migration == nil {
		return failure
	}
	either, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(migration, cancel)
	began := time.Now()
	answers := atomic.LoadInt64(&t.server.answers)
	<-either.Done()
	stop()
	if err := ctx.Err(); err != nil {
		return t.server.noteFailure(err, time.Since(began), answers)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure
}

// startLocked is start for a caller that holds the mutex.
func (t *tables) startLocked() {
	if t.disabled {
		atomic.StoreInt32(&t.ready, 1)
	}
	if atomic.LoadInt32(&t.ready) == 1 || t.migration != nil || t.server.closing.Err() != nil || time.Now().Before(t.next) {
		return
	}
	migration, done := context.WithCancel(context.Background())
	t.migration = migration
	t.failure = nil
	go func() {
		var err error
		policyDue := false
		if failure := batch.PanicError(func() { policyDue, err = t.migrate() }); failure != nil {
			err = failure
		}
		t.mu.Lock()
		t.finished(err)
		t.mu.Unlock()
		t.report(err)
		done()
		if policyDue {
			t.migratePolicy()
		}
	}()
}

// finished takes in the outcome of a migration. The caller holds the mutex.
func (t *tables) finished(err error) {
	t.migration = nil
	t.failure = err
	if err == nil {
		atomic.StoreInt32(&t.ready, 1)
		t.pause = 0
		return
	}
	t.pause *= 2
	if t.pause < firstPause {
		t.pause = firstPause
	}
	if t.pause > longestPause {
		t.pause = longestPause
	}
	t.next = time.Now().Add(t.pause)
}

// migrate makes the tables of counts what they must be. It reports whether those of the
// policy are due.
func (t *tables) migrate() (policyDue bool, err error) {
	ctx, cancel := context.WithTimeout(t.server.closing, migrationTimeout)
	defer cancel()
	now, err := t.look(ctx)
	if err != nil {
		return false, err
	}
	policyDue = !now.policy && now.server >= schema.OldestPolicyServer
	if now.counters {
		return policyDue, nil
	}
	failure := t.server.db.Exec(ctx, migrationSQL)
	if failure == nil {
		return policyDue, nil
	}
	// A program that creates the tables at the same moment without the advisory lock (the
	// npm library does) can make this attempt fail, and the tables right.
	if now, err := t.look(ctx); err == nil && now.counters {
		return policyDue, nil
	}
	return false, fmt.Errorf("creating the tables rate_limit_ephemeral and rate_limit_durable (their owner can run postgres.TableSQL instead): %w", failure)
}

// look looks at the tables. A failure of the connection counts for the health of the database.
func (t *tables) look(ctx context.Context) (tablesFound, error) {
	sent := time.Now()
	answers := atomic.LoadInt64(&t.server.answers)
	now, failed, err := lookForTables(ctx, t.server.db)
	if failed {
		err = t.server.noteFailure(err, time.Since(sent), answers)
	}
	return now, err
}

// migratePolicy makes the tables of the policy what they must be. A failure is not reported,
// since most programs that count have no policy. A program that has one calls MigratePolicy
// and gets the error.
func (t *tables) migratePolicy() {
	ctx, cancel := context.WithTimeout(t.server.closing, migrationTimeout)
	defer cancel()
	_ = batch.PanicError(func() { _ = t.server.db.Exec(ctx, policyMigrationSQL) })
}
