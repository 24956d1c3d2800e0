package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// setupTimeout bounds each statement, which may have to wait for the migration of another process.
	setupTimeout = 30 * time.Second

	// setupRetry and maxSetupRetry bound the time between a failed attempt and the next.
	setupRetry    = 100 * time.Millisecond
	maxSetupRetry = 10 * time.Second
)

// Prepare connects and migrates in the background, so that the first decision does not wait.
func (s *Store) Prepare() { _, _ = s.server.start() }

// Ready reports whether the tables of counts exist in the current version, here or in other stores.
func (s *Store) Ready() bool { return atomic.LoadInt32(&s.server.ready) == 1 }

// Await waits for up to timeout until the store is ready.
func (s *Store) Await(ctx context.Context, timeout time.Duration) error {
	return s.server.await(ctx, timeout)
}

// await waits for up to timeout until the setup is done, and starts it if it is due.
func (s *server) await(ctx context.Context, timeout time.Duration) error {
	attempt, failure := s.start()
	switch {
	case atomic.LoadInt32(&s.ready) == 1:
		return nil
	case s.closing.Err() != nil:
		return ratelimit.ErrClosed
	case attempt == nil:
		return failure
	}
	start := time.Now()
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(attempt, cancel)
	<-waiting.Done()
	stop()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case attempt.Err() == nil:
		return s.health.Failed(start, timeout, pgdb.ErrNoAnswer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// start starts the setup in the background if it is due. It returns the current attempt, or nil and the
// error of the last one.
func (s *server) start() (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if atomic.LoadInt32(&s.ready) == 1 || s.attempt != nil || s.closing.Err() != nil ||
		time.Now().Before(s.retryAt) {
		return s.attempt, s.failure
	}
	attempt, done := context.WithCancel(context.Background())
	s.attempt = attempt
	s.failure = nil
	go func() {
		err := batch.Try(s.setUp)
		s.mu.Lock()
		s.recordResult(err)
		s.mu.Unlock()
		if s.closing.Err() == nil { // else Close interrupted it
			s.report(err)
		}
		done()
	}()
	return s.attempt, s.failure
}

// recordResult records the result of an attempt. The caller holds the mutex.
func (s *server) recordResult(err error) {
	s.attempt = nil
	s.failure = err
	if err == nil {
		atomic.StoreInt32(&s.ready, 1)
		s.retryIn = 0
		return
	}
	s.retryIn *= 2
	if s.retryIn < setupRetry || errors.Is(err, schema.ErrRestoring) {
		s.retryIn = setupRetry
	}
	if s.retryIn > maxSetupRetry {
		s.retryIn = maxSetupRetry
	}
	s.retryAt = time.Now().Add(s.retryIn)
}

// TableSQL creates the tables of counts, like postgres.TableSQL.
const TableSQL = schema.Counters

// migrationSQL runs in one process at a time.
const migrationSQL = schema.Lock + TableSQL

// restoreWait is the time for which tables must be missing before setUp creates them again.
const restoreWait = time.Second

// setUp finds out whether the counts are in this store. If they are, it creates or upgrades their tables.
func (s *server) setUp() error {
	if s.discover != nil {
		if elsewhere, err := s.discover(s.closing); err != nil || elsewhere {
			return err
		}
	}
	if !s.migrates {
		return nil
	}
	ready, restoring, err := s.inspect()
	if err == nil && !ready && !restoring && s.existed {
		// A restore drops the tables, and creates them a moment later. In between, nothing in the database
		// shows the restore, so two inspections must find neither tables nor a restore.
		health.Sleep(s.closing, restoreWait)
		ready, restoring, err = s.inspect()
	}
	if err == nil && restoring && !ready {
		err = schema.ErrRestoring
	}
	if err == nil && !ready {
		err = s.create()
	}
	s.existed = s.existed || err == nil
	return err
}

// create creates or upgrades the tables.
func (s *server) create() error {
	failure := s.db.Exec(s.closing, setupTimeout, migrationSQL)
	if failure == nil {
		return nil
	}
	// A program that creates the tables at the same time without the advisory lock, such as the npm library,
	// can make this attempt fail although the tables are right.
	if ready, _, err := s.inspect(); err == nil && ready {
		return nil
	}
	return fmt.Errorf("creating the tables rate_limit_ephemeral and rate_limit_durable (a role that may, "+
		"such as their owner, can run caddy pg-ratelimit migrate, or schema.sql, instead): %w",
		pg.Explain(s.closing, s.db, failure))
}

// inspect reports whether the tables are ready, and whether a restore of the policy is under way or has
// failed. It also reads the server's identity, to detect a replaced server later. A connection failure counts
// for the health of the database.
func (s *server) inspect() (ready, restoring bool, err error) {
	sent := time.Now()
	tables := &pgdb.Statement{SQL: schema.Ready}
	identity := &pgdb.Statement{SQL: serverSQL}
	failure := s.db.Run(s.closing, setupTimeout, []*pgdb.Statement{tables, identity})
	if failure != nil {
		return false, false, s.health.Failed(sent, setupTimeout, failure)
	}
	s.checkIdentity(identity)
	if tables.Err != nil {
		return false, false, fmt.Errorf("looking for the tables: %w", tables.Err)
	}
	columns := pg.Bigints(tables.Result)
	if len(columns) != 3 {
		return false, false, nil
	}
	return columns[0] == 1, columns[2] == 1, nil
}
