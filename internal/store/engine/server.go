package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// server runs statements on a database server, and has the server's health.
type server struct {
	db      pgdb.DB
	health  *health.Health
	closing context.Context // ends when the store is closed
	stats   Stats           // counts errors
	// onIdentity is called with a finished statement serverSQL. After an outage, that is before the next
	// request is decided: another server may have taken over.
	onIdentity func(read *pgdb.Statement)
}

// ErrSent is wrapped by the error of a batch that the database may have decided before the connection failed.
var ErrSent = errors.New("while a batch was under way")

// maxRetries bounds the retries of a transaction that lost a conflict. For each loss another transaction has
// succeeded, so the transactions together make progress.
const maxRetries = 20

// run runs the statements, with timeout for each attempt, and reports whether a statement has failed. While
// the database answers others, run continues to wait for a connection. It retries a transaction that the
// server rolled back because of a deadlock, or because the default isolation of the database is stricter than
// READ COMMITTED.
func (s *server) run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) (bool, error) {
	failed := false
	for attempt := 0; len(statements) > 0; attempt++ {
		sent := time.Now()
		begin := s.health.Begin()
		within, cancel := context.WithTimeout(ctx, timeout)
		deadline, _ := within.Deadline()
		err := s.db.Run(within, statements)
		cancel()
		noTurn := errors.Is(err, pg.ErrNoTurn)
		if noTurn && ctx.Err() == nil && !s.health.Silent() && attempt < health.MaxTimeouts {
			continue // nothing was sent
		}
		if err != nil {
			countErrors(s.stats, statements, err)
			if noTurn {
				return true, err
			}
			if had := deadline.Sub(sent); had >= timeout || !errors.Is(err, context.DeadlineExceeded) {
				err = s.health.Failed(begin, had, err)
				if errors.Is(err, ratelimit.ErrUnavailable) {
					err = fmt.Errorf("%w (%w)", err, ErrSent)
				}
			} // else the batch has ended the statement early, which is not a failure of the database
			return true, err
		}
		s.health.Answered()
		fails := false
		for _, statement := range statements {
			if statement.Err != nil {
				fails = true
				break
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
	for from := 0; from < len(statements); {
		to := from
		for statements[to].Joined && to+1 < len(statements) {
			to++
		}
		to++
		for _, s := range statements[from:to] {
			if pg.IsTransient(s.Code) {
				lost = append(lost, statements[from:to]...)
				break
			}
		}
		from = to
	}
	return lost
}

// ping runs serverSQL, and passes its result to onIdentity. A panic of the driver is an error.
func (s *server) ping(ctx context.Context) error {
	statements := []*pgdb.Statement{{SQL: serverSQL}}
	var err error
	if failure := batch.PanicError(func() { err = s.db.Run(ctx, statements) }); failure != nil {
		return failure
	}
	if err != nil && s.closing.Err() == nil {
		countErrors(s.stats, statements, err)
	}
	if err == nil {
		s.onIdentity(statements[0])
	}
	return err
}
