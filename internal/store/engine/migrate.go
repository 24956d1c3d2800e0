package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TableSQL is that of package postgres.
const TableSQL = schema.Counters

// migrationSQL runs in one process at a time.
const migrationSQL = schema.Lock + TableSQL

// tables makes the two tables of counts what they must be, once, and again if they are
// dropped.
//
// States: ready; a migration is under way (migration is set); the last one failed (failure
// is set), and none is started before next.
type tables struct {
	server   *server
	disabled bool // the operator makes the tables
	report   func(error)

	// find is chain.Place.Find.
	find func(ctx context.Context) (elsewhere, down bool, err error)

	// Atomic, so that a batch need not take the mutex.
	ready     int32 // 1 if the tables are as they must be
	elsewhere int32 // 1 if find has found them elsewhere: nothing is decided here then

	mu        sync.Mutex      // guards all that follows
	migration context.Context // ends with the migration that is under way
	failure   error
	had       bool // they have been as they must be; only the migration writes it
	retryIn   time.Duration
	next      time.Time
}

const (
	// migrationTimeout bounds one attempt. Another process may have the advisory lock
	// for as long.
	migrationTimeout = 30 * time.Second

	// migrateRetry and longestMigrateRetry bound the time between two attempts that fail.
	migrateRetry        = 100 * time.Millisecond
	longestMigrateRetry = 10 * time.Second

	// restoreWait is how long tables that were there must be gone until they are made again.
	restoreWait = time.Second
)

// missing records that the tables are not there any more.
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
	begin := t.server.health.Begin()
	<-either.Done()
	stop()
	if err := ctx.Err(); err != nil {
		return t.server.health.Failed(begin, time.Since(began), err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure
}

// startLocked is start for a caller that holds the mutex.
func (t *tables) startLocked() {
	if t.disabled && t.find == nil {
		atomic.StoreInt32(&t.ready, 1)
	}
	if atomic.LoadInt32(&t.ready) == 1 || t.migration != nil || t.server.closing.Err() != nil ||
		time.Now().Before(t.next) {
		return
	}
	migration, done := context.WithCancel(context.Background())
	t.migration = migration
	t.failure = nil
	go func() {
		var err error
		if failure := batch.PanicError(func() { err = t.migrate() }); failure != nil {
			err = failure
		}
		t.mu.Lock()
		t.finished(err)
		t.mu.Unlock()
		if t.server.closing.Err() == nil { // else it was interrupted
			t.report(err)
		}
		done()
	}()
}

// finished records how a migration has ended. The caller holds the mutex.
func (t *tables) finished(err error) {
	t.migration = nil
	t.failure = err
	if err == nil {
		atomic.StoreInt32(&t.ready, 1)
		t.had = true
		t.retryIn = 0
		return
	}
	t.retryIn *= 2
	if t.retryIn < migrateRetry || errors.Is(err, schema.ErrRestoring) {
		t.retryIn = migrateRetry
	}
	if t.retryIn > longestMigrateRetry {
		t.retryIn = longestMigrateRetry
	}
	t.next = time.Now().Add(t.retryIn)
}

// migrate makes the tables of counts what they must be.
func (t *tables) migrate() error {
	ctx, cancel := context.WithTimeout(t.server.closing, migrationTimeout)
	defer cancel()
	if t.find != nil {
		sent := time.Now()
		begin := t.server.health.Begin()
		found, down, err := t.find(ctx)
		if down {
			err = t.server.health.Failed(begin, time.Since(sent), err)
		}
		if found {
			atomic.StoreInt32(&t.elsewhere, 1)
		}
		if err != nil || found || t.disabled {
			return err
		}
	}
	now, err := t.inspect(ctx)
	if err == nil && !now.counters && !now.restoring && t.had {
		// A restore drops the tables, and makes them a moment later. In between, nothing in the database
		// shows the restore. So two inspections must find neither tables nor a restore.
		batch.Sleep(ctx, restoreWait)
		now, err = t.inspect(ctx)
	}
	if err != nil || now.counters {
		return err
	}
	if now.restoring {
		return schema.ErrRestoring
	}
	failure := t.server.db.Exec(ctx, migrationSQL)
	if failure == nil {
		return nil
	}
	// A program that creates the tables at the same moment without the advisory lock (the
	// npm library does) can make this attempt fail, and the tables right.
	if now, err := t.inspect(ctx); err == nil && now.counters {
		return nil
	}
	return fmt.Errorf("creating the tables rate_limit_ephemeral and rate_limit_durable (a role that may, such as their owner, can run caddy pg-ratelimit migrate, or schema.sql, instead): %w", session.Explain(ctx, t.server.db, failure))
}

// inspect finds out what tables there are, and which server has them, so that another one is noticed later. A failure of
// the connection counts for the health of the database.
func (t *tables) inspect(ctx context.Context) (tablesFound, error) {
	sent := time.Now()
	begin := t.server.health.Begin()
	read := &pgdb.Statement{SQL: serverSQL}
	now, failed, err := lookForTables(ctx, t.server.db, read)
	if failed {
		err = t.server.health.Failed(begin, time.Since(sent), err)
	} else {
		t.server.see(read)
	}
	return now, err
}

// tablesFound is a part of what schema.Ready returns.
type tablesFound struct {
	counters  bool // nothing is to be done
	restoring bool // a restore of the policy is under way, or has failed
}

// lookForTables reports which tables are right, and whether the connection failed. It runs the others as well.
func lookForTables(ctx context.Context, db pgdb.DB, others ...*pgdb.Statement) (tablesFound, bool, error) {
	statement := &pgdb.Statement{SQL: schema.Ready}
	if err := db.Run(ctx, append([]*pgdb.Statement{statement}, others...)); err != nil {
		return tablesFound{}, true, err
	}
	if statement.Err != nil {
		return tablesFound{}, false, fmt.Errorf("looking for the tables: %w", statement.Err)
	}
	found := tablesFound{}
	columns := results.Bigints(statement.Result)
	if len(columns) == 3 {
		found.counters = columns[0] == 1
		found.restoring = columns[2] == 1
	}
	return found, false, nil
}
