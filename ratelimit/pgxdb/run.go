package pgxdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// maxAttempts bounds the attempts to run a transaction. A transaction is sent again only if the attempts
// before certainly had no effect.
const maxAttempts = 4

// maxLostStatements is the number of times that prepared statements may be lost before the DB stops preparing
// statements.
const maxLostStatements = 2

// attempt describes one attempt to run statements, and its outcome.
type attempt struct {
	retry   []*pgdb.Statement // whole transactions that had no effect and may be sent again
	unnamed bool              // do not prepare statements; set by an attempt for the next one
	lost    bool              // the server lacked prepared statements of this connection
	close   bool              // the connection must be closed
}

// Run implements pgdb.DB.
func (d *DB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	if len(statements) == 0 {
		return nil
	}
	had := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		had = time.Until(deadline)
	}
	a := attempt{}
	for n := 1; ; n++ {
		a = attempt{unnamed: a.unnamed || d.lost.Load() >= maxLostStatements}
		err := d.try(ctx, had, statements, &a)
		if len(a.retry) == 0 || n == maxAttempts || ctx.Err() != nil {
			return err
		}
		statements = a.retry
	}
}

// try runs statements on a connection of the pool and sets Err of each statement that it does not put into
// a.retry. had is the time that ctx had left at the call, or 0 without a deadline. The error is the error of
// the connection or of ctx.
func (d *DB) try(ctx context.Context, had time.Duration, statements []*pgdb.Statement, a *attempt) error {
	for _, s := range statements {
		s.Err, s.Code, s.Result, s.Rows = nil, "", s.Result[:0], 0
	}
	conn, err := d.acquire(ctx)
	if err != nil {
		setFailed(statements, fmt.Errorf("%w: %w", pg.ErrNotSent, err))
		return err
	}
	defer d.release(conn)
	c := connectionOf(conn.Conn().PgConn())
	guarded := statements
	if c.unguarded > 0 && !statements[0].Unnamed {
		c.unguarded--
	} else {
		guarded = pg.Guard(statements, c.unguarded > 0)
	}
	answer, stop := answerContext(ctx, had)
	defer stop()
	err = c.run(answer, guarded, a)
	if len(guarded) != len(statements) {
		a.retry = pg.WithoutGuard(a.retry)
		if apart := pg.Apart(guarded); apart != nil {
			*a = attempt{close: true}
			setFailed(statements, apart)
			err = apart
		} else if c.unguarded == 0 {
			c.unguarded = pg.UnguardedUses(guarded)
		}
	}
	if a.lost {
		d.lost.Add(1)
	}
	if a.close {
		closeConn(conn)
	}
	return err
}

// answerContext returns the context for the answer to statements that are about to be sent. It ends like ctx,
// except that a deadline counts from now: had later. The deadline thus bounds the database, not this process.
func answerContext(ctx context.Context, had time.Duration) (context.Context, context.CancelFunc) {
	if had <= 0 {
		return ctx, func() {}
	}
	answer, cancel := context.WithTimeout(context.WithoutCancel(ctx), had)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	return answer, func() {
		stop()
		cancel()
	}
}

// Exec implements pgdb.DB.
func (d *DB) Exec(ctx context.Context, sql string) error {
	conn, err := d.acquire(ctx)
	if err != nil {
		return err
	}
	defer d.release(conn)
	_, err = conn.Conn().PgConn().Exec(ctx, sql).ReadAll()
	if e := serverError(err); e != nil && pg.ClosesConnection(e.Code) {
		closeConn(conn)
	}
	return err
}

// closeConn closes a connection, so that the pool does not keep it.
func closeConn(conn *pgxpool.Conn) { _ = conn.Conn().PgConn().Close(context.Background()) }

// setFailed sets Err and Code of statements.
func setFailed(statements []*pgdb.Statement, err error) {
	code := ""
	if e := serverError(err); e != nil {
		code = e.Code
	}
	for _, s := range statements {
		s.Err, s.Code = err, code
	}
}

// rollBack sets the errors of a transaction after its statement i failed.
func rollBack(statements []*pgdb.Statement, i int, err error) {
	setFailed(statements, pgdb.ErrRolledBack)
	setFailed(statements[i:i+1], err)
}

// serverError returns the error of the server in err, or nil.
func serverError(err error) *pgconn.PgError {
	var e *pgconn.PgError
	errors.As(err, &e)
	return e
}
