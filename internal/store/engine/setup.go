package engine

import (
	"context"
	"errors"
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
	// setupRetry and maxSetupRetry bound the time between a failed attempt and the next.
	setupRetry    = 100 * time.Millisecond
	maxSetupRetry = 10 * time.Second
)

// Prepare connects and migrates in the background, so that the first decision does not wait.
func (s *server) Prepare() { _, _ = s.start() }

// Ready reports whether the tables of counts exist in the current version, here or in other stores.
func (s *server) Ready() bool { return atomic.LoadInt32(&s.ready) == 1 }

// Await waits for up to timeout until the setup is done, or longer while it creates tables. It starts the
// setup if it is due. See health.Await.
func (s *server) Await(ctx context.Context, timeout time.Duration) error {
	attempt, failure := s.start()
	switch {
	case atomic.LoadInt32(&s.ready) == 1:
		return nil
	case s.closing.Err() != nil:
		return ratelimit.ErrClosed
	case attempt == nil:
		return failure
	}
	if err := s.health.Await(ctx, attempt, timeout, s.creation); err != nil {
		return err
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
	first := s.retryIn == 0 && !s.existed
	go func() {
		err := batch.Try(func() error { return pg.Explain(s.closing, s.db, s.setUp(first)) })
		s.creation.End()
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

// TableSQL creates all tables, like postgres.TableSQL.
const TableSQL = schema.Upgrade

const (
	// restoreWait is the time for which tables must be missing before setUp creates them again.
	restoreWait = time.Second
	// lockedPause is the time between two inspections while another session migrates.
	lockedPause = 50 * time.Millisecond
)

// setUp finds out whether the counts are in this engine. If they are, it creates the tables if there are
// none, unless another session does. Requests wait for that if this is the first attempt.
func (s *server) setUp(first bool) error {
	if s.discover != nil {
		if elsewhere, err := s.discover(s.closing); err != nil || elsewhere {
			return err
		}
	}
	for s.closing.Err() == nil {
		locked, err := s.inspect()
		if errors.Is(err, schema.ErrMissing) && !locked && s.existed {
			// A restore drops the tables, and creates them a moment later. In between, nothing in the
			// database shows the restore, so two inspections must find neither tables nor a restore.
			health.Sleep(s.closing, restoreWait)
			locked, err = s.inspect()
		}
		if errors.Is(err, schema.ErrMissing) && !s.migrates && !locked {
			err = nil // each request names the table that is missing
		}
		if !errors.Is(err, schema.ErrMissing) {
			s.existed = s.existed || err == nil
			return err
		}
		if first || locked {
			s.creation.Begin()
		}
		if !locked {
			err = schema.CreateTables(s.closing, s.db)
			s.existed = s.existed || err == nil
			return err
		}
		health.Sleep(s.closing, lockedPause)
	}
	return ratelimit.ErrClosed
}

// inspect returns nil if this program can use the tables, and otherwise the error of schema.Seen. locked
// reports whether another session holds the lock of migrations. inspect also reads the server's identity, to
// detect a replaced server later. A connection failure counts for the health of the database. The timeout is
// short, because a network may drop the packets of the first look.
func (s *server) inspect() (locked bool, err error) {
	sent := time.Now()
	lock := &pgdb.Statement{SQL: schema.Locked}
	tables := &pgdb.Statement{SQL: schema.StateSQL}
	identity := &pgdb.Statement{SQL: serverSQL}
	failure := s.db.Run(s.closing, identityTimeout, []*pgdb.Statement{lock, tables, identity})
	if failure != nil {
		return false, s.health.Failed(sent, identityTimeout, failure)
	}
	s.health.Answered()
	s.checkIdentity(identity)
	return schema.Seen(lock, tables)
}
