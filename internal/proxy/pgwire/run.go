package pgwire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A statement usually takes the path Run, acquire, runOn, pipeline, appendStatement, fill, readResponse,
// release. doc.go explains the form of these functions.

// maxAttempts bounds the attempts to run a statement. Every attempt before the last certainly had no effect.
const maxAttempts = 4

// maxLost is the number of losses of prepared statements after which the pool stops preparing them.
const maxLost = 2

// runError describes a failed attempt to run statements. A nil *runError means success.
type runError struct {
	retry    []*pgdb.Statement // whole transactions that had no effect and may be sent again
	unnamed  bool              // send retry without prepared statements
	lost     bool              // prepared statements were missing on the server
	err      error             // the error of Run, unless a retry succeeds
	code     string            // the SQLSTATE of err, or ""
	reusable bool              // the connection is intact despite err
	running  bool              // the server may still work on the request
}

// Run implements pgdb.DB. It sends statements until they succeed or must not be sent again, at most
// maxAttempts times.
func (p *Pool) Run(ctx context.Context, statements []*pgdb.Statement) error {
	timeout := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	failed := &runError{retry: statements}
	unnamed := false
	for attempt := 0; len(failed.retry) > 0 && attempt < maxAttempts; attempt++ {
		if attempt > 0 && ctx.Err() != nil {
			break
		}
		left := failed.retry
		c, unavailable := acquire(p, ctx)
		if unavailable != nil {
			setAllFailed(left, fmt.Errorf("%w: %w", pg.ErrNotSent, unavailable.err), unavailable.code)
			return unavailable.err
		}
		unnamed = unnamed || failed.unnamed
		failed = runOn(p, ctx, timeout, c, left, unnamed)
		if failed == nil {
			return nil
		}
	}
	if failed.err != nil {
		setAllFailed(failed.retry, failed.err, failed.code)
	}
	return failed.err // nil if each statement has its own result in Err
}

// runOn runs statements on a connection that the caller owns, and releases the connection. timeout is the
// time that ctx had left when Run was called; 0 means unbounded. The deadline of ctx does not interrupt
// runOn, because timeout starts when the request is sent.
func runOn(p *Pool, ctx context.Context, timeout time.Duration, c *conn, statements []*pgdb.Statement,
	unnamed bool) *runError {
	c.usable = false
	defer release(p, c)
	c.timeout = timeout
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.interrupt()
		}
	})
	var failed *runError
	if c.uses > 0 && !statements[0].Unnamed {
		c.uses--
		failed = pipeline(ctx, c, statements, unnamed)
	} else {
		failed = guardedPipeline(ctx, c, statements, unnamed)
	}
	c.usable = stop() || errors.Is(ctx.Err(), context.DeadlineExceeded)
	if timeout > 0 && c.usable {
		_ = c.raw.SetDeadline(time.Time{})
	}
	if failed != nil {
		noteFailure(p, c, failed)
	}
	return failed
}

// guardedPipeline sends a guard before each transaction.
func guardedPipeline(ctx context.Context, c *conn, statements []*pgdb.Statement, unnamed bool) *runError {
	guarded := pg.Guard(statements, c.uses > 0)
	failed := pipeline(ctx, c, guarded, unnamed)
	if err := pg.Apart(guarded); err != nil {
		setAllFailed(statements, err, "")
		return &runError{err: err}
	}
	if c.uses == 0 {
		c.uses = pg.UnguardedUses(guarded)
	}
	if failed != nil {
		failed.retry = pg.WithoutGuard(failed.retry)
	}
	return failed
}

// noteFailure updates the connection and the pool after a failed attempt.
func noteFailure(p *Pool, c *conn, failed *runError) {
	if failed.err != nil && !failed.reusable {
		c.usable = false
	}
	if failed.running {
		p.cancel(c)
	}
	if failed.lost {
		p.countLost()
	}
}

// errPending is the Err of a statement until its result is known.
var errPending = errors.New("pgwire: not answered")

// setAllFailed sets the error and the SQLSTATE of several statements.
func setAllFailed(statements []*pgdb.Statement, err error, code string) {
	for _, st := range statements {
		setFailed(st, err, code)
	}
}

func setFailed(st *pgdb.Statement, err error, code string) {
	st.Err = err
	st.Code = code
}

// countLost counts a loss of prepared statements. After maxLost of them, it stops preparing statements.
func (p *Pool) countLost() {
	p.mu.Lock()
	p.lost++
	stops := p.lost == maxLost
	p.unnamed = p.unnamed || stops
	p.mu.Unlock()
	if stops {
		p.log("the server loses prepared statements, as a transaction pooler does: from now on statements " +
			"are sent without being prepared, which costs some speed")
	}
}
