package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// server runs statements on a database server, and has the server's health.
//
// Before the first decision, its setup does the work on the database that decisions need. The setup runs in
// the background, until it succeeds once, and again after the tables were dropped. States: ready; an attempt
// is in progress (attempt is set); the last attempt failed (failure is set), and none starts before retryAt.
type server struct {
	db      pgdb.DB
	health  *health.Health
	closing context.Context // ends when the engine is closed
	report  func(error)     // Options.Report
	stats   Stats           // the counters; Engine.Stats adds gauges from other fields

	rows  *lease.Set // the remembered rows
	lanes [2]*lane   // those of the engine; a replaced server drops the refunds in them

	// onReplaced is called when the counts may lack what this process has charged and holds.
	onReplaced func()
	discover   func(ctx context.Context) (bool, error) // Options.Discover
	migrates   bool                                    // the setup creates and upgrades the tables
	existed    bool                                    // the tables have existed; only the setup uses it
	ready      int32                                   // 1 once the setup is done; atomic
	creation   *health.Creation                        // of the tables by an attempt of the setup

	mu      sync.Mutex      // guards the fields below
	attempt context.Context // ends with the current attempt; nil without one
	failure error           // the error of the last attempt, or nil
	retryIn time.Duration   // the time from the next failure to another attempt
	retryAt time.Time       // no attempt starts before this time
	// The parts of the last schema.ServerIdentity; "" before the first.
	started, policyChanges string
}

// ErrSent is wrapped by the error of a batch that the database may have decided before the connection failed.
var ErrSent = errors.New("while a batch was under way")

// maxRetries bounds the retries of a transaction that lost a conflict. For each lost transaction another one
// has succeeded, so the transactions together make progress.
const maxRetries = 20

// run sends the statements in one pipeline, with timeout for each attempt. It returns an error if the
// pipeline failed, and otherwise reports whether a statement failed. While the database answers other calls,
// run tries again to get a connection, up to health.MaxTimeouts times. It retries a transaction that the
// server rolled back because of a deadlock, or because the default isolation of the database is stricter than
// READ COMMITTED.
func (s *server) run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) (bool, error) {
	atomic.AddInt64(&s.stats[Statements], int64(len(statements)))
	failed := false
	for attempt := 0; len(statements) > 0; attempt++ {
		sent := time.Now()
		if err := s.db.Run(ctx, timeout, statements); err != nil {
			if errors.Is(err, pgdb.ErrNoAnswer) && pg.Synchronous(statements) {
				s.health.Check(timeout) // only the standby may be lost
			} else {
				err = s.health.Failed(sent, timeout, err)
			}
			notSent := errors.Is(err, pgdb.ErrNotSent)
			if notSent && ctx.Err() == nil && !s.health.Silent() && attempt < health.MaxTimeouts {
				continue
			}
			countErrors(s.stats, statements, err)
			if !notSent && errors.Is(err, ratelimit.ErrUnavailable) {
				err = fmt.Errorf("%w (%w)", err, ErrSent)
			}
			return true, err
		}
		s.health.Answered()
		fails := false
		for _, statement := range statements {
			if statement.Err != nil {
				fails = true
				if s.migrates && pg.IsMissingTable(statement.Code) {
					atomic.StoreInt32(&s.ready, 0)
				}
			}
		}
		if fails {
			countErrors(s.stats, statements, nil)
		}
		failed = failed || fails
		if !fails || attempt == maxRetries {
			break
		}
		statements = lostTransactions(statements)
	}
	return failed, nil
}

// lostTransactions returns the statements of the transactions that lost a conflict.
func lostTransactions(statements []*pgdb.Statement) []*pgdb.Statement {
	var lost []*pgdb.Statement
	for first := 0; first < len(statements); {
		_, end := pg.Transaction(statements, first)
		for _, s := range statements[first:end] {
			if pg.IsTransient(s.Code) {
				lost = append(lost, statements[first:end]...)
				break
			}
		}
		first = end
	}
	return lost
}
