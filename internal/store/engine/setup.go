package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Setup is work on the database that must be done before decisions are possible. It runs in the background,
// until it succeeds once.
//
// States: ready; an attempt is in progress (attempt is set); the last attempt failed (failure is set), and
// none starts before retryAt.
type Setup struct {
	health  *health.Health
	closing context.Context
	report  func(error)
	work    func(ctx context.Context) error

	ready int32 // 1 once the work is done; atomic, so that a batch need not take the mutex

	mu      sync.Mutex      // guards all that follows
	attempt context.Context // ends with the current attempt; nil without one
	failure error           // the error of the last attempt, or nil
	retryIn time.Duration   // the time from the next failure to another attempt
	retryAt time.Time       // no attempt starts before this time
}

const (
	// setupTimeout bounds one attempt. Another process may hold the advisory lock of a migration as long.
	setupTimeout = 30 * time.Second

	// setupRetry and maxSetupRetry bound the time between a failed attempt and the next.
	setupRetry    = 100 * time.Millisecond
	maxSetupRetry = 10 * time.Second
)

// NewSetup returns a Setup that is not started. work passes errors that show the health of the server to
// health.Failed. report is called with the error of each attempt.
func NewSetup(closing context.Context, h *health.Health, report func(error),
	work func(ctx context.Context) error) *Setup {
	return &Setup{health: h, closing: closing, report: report, work: work}
}

// SetupDone reports whether the work is done.
func SetupDone(s *Setup) bool { return atomic.LoadInt32(&s.ready) == 1 }

// StartSetup starts the work in the background if it is due.
func StartSetup(s *Setup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
}

// Await waits until the work is done, and starts it if it is due.
func (s *Setup) Await(ctx context.Context) error {
	s.mu.Lock()
	s.start()
	running := s.attempt
	failure := s.failure
	s.mu.Unlock()
	if SetupDone(s) {
		return nil
	}
	if running == nil {
		return failure
	}
	either, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(running, cancel)
	began := time.Now()
	begin := s.health.Begin()
	<-either.Done()
	stop()
	if err := ctx.Err(); err != nil {
		return s.health.Failed(begin, time.Since(began), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// start starts the work if it is due. The caller holds the mutex.
func (s *Setup) start() {
	if SetupDone(s) || s.attempt != nil || s.closing.Err() != nil || time.Now().Before(s.retryAt) {
		return
	}
	running, done := context.WithCancel(context.Background())
	s.attempt = running
	s.failure = nil
	go func() {
		ctx, cancel := context.WithTimeout(s.closing, setupTimeout)
		var err error
		if failure := batch.PanicError(func() { err = s.work(ctx) }); failure != nil {
			err = failure
		}
		cancel()
		s.mu.Lock()
		s.recordResult(err)
		s.mu.Unlock()
		if s.closing.Err() == nil { // else Close interrupted it
			s.report(err)
		}
		done()
	}()
}

// recordResult records the result of an attempt. The caller holds the mutex.
func (s *Setup) recordResult(err error) {
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

// restoreWait is the time for which tables must be missing before migrate creates them again.
const restoreWait = time.Second

// migrate creates or upgrades the tables of counts.
func (s *server) migrate(ctx context.Context) error {
	ready, restoring, err := s.inspect(ctx)
	if err == nil && !ready && !restoring && s.existed {
		// A restore drops the tables, and creates them a moment later. In between, nothing in the database
		// shows the restore, so two inspections must find neither tables nor a restore.
		health.Sleep(ctx, restoreWait)
		ready, restoring, err = s.inspect(ctx)
	}
	if err == nil && restoring && !ready {
		err = schema.ErrRestoring
	}
	if err == nil && !ready {
		err = s.create(ctx)
	}
	s.existed = s.existed || err == nil
	return err
}

// create creates or upgrades the tables.
func (s *server) create(ctx context.Context) error {
	failure := s.db.Exec(ctx, migrationSQL)
	if failure == nil {
		return nil
	}
	// A program that creates the tables at the same time without the advisory lock, such as the npm library,
	// can make this attempt fail although the tables are right.
	if ready, _, err := s.inspect(ctx); err == nil && ready {
		return nil
	}
	return fmt.Errorf("creating the tables rate_limit_ephemeral and rate_limit_durable (a role that may, "+
		"such as their owner, can run caddy pg-ratelimit migrate, or schema.sql, instead): %w",
		pg.Explain(ctx, s.db, failure))
}

// inspect reports whether the tables are ready, and whether a restore of the policy is under way or has
// failed. It also reads the server's identity, to detect a replaced server later. A connection failure counts
// for the health of the database.
func (s *server) inspect(ctx context.Context) (ready, restoring bool, err error) {
	sent := time.Now()
	begin := s.health.Begin()
	found := &pgdb.Statement{SQL: schema.Ready}
	identity := &pgdb.Statement{SQL: serverSQL}
	if failure := s.db.Run(ctx, []*pgdb.Statement{found, identity}); failure != nil {
		return false, false, s.health.Failed(begin, time.Since(sent), failure)
	}
	s.onIdentity(identity)
	if found.Err != nil {
		return false, false, fmt.Errorf("looking for the tables: %w", found.Err)
	}
	columns := pg.Bigints(found.Result)
	if len(columns) != 3 {
		return false, false, nil
	}
	return columns[0] == 1, columns[2] == 1, nil
}
