package pgxdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// maxAttempts is how often a transaction is sent at most. After every attempt but
// the last one, it is certain that the transaction had no effect.
const maxAttempts = 4

// maxLost is how many times prepared statements may be lost before the DB stops
// preparing them.
const maxLost = 2

// errPending is the Err of a statement until its result is known.
var errPending = errors.New("pgxdb: no answer from the server")

// attemptResult is the result of one attempt to run statements.
type attemptResult struct {
	retry   []*pgdb.Statement // whole transactions that had no effect and may be sent again
	unnamed bool              // send them without prepared statements
	err     error             // the connection failed or the context ended
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
	unnamed := false
	for attempt := 1; ; attempt++ {
		result := d.attempt(ctx, had, statements, unnamed || d.lost.Load() >= maxLost)
		if len(result.retry) == 0 || attempt == maxAttempts || ctx.Err() != nil {
			return result.err
		}
		statements, unnamed = result.retry, unnamed || result.unnamed
	}
}

// attempt runs statements on a connection of the pool. Afterwards the Err of each is
// set, unless the statement is retried. had is what ctx had left at the call; 0 is no bound.
func (d *DB) attempt(ctx context.Context, had time.Duration, statements []*pgdb.Statement, unnamed bool) attemptResult {
	for _, s := range statements {
		s.Err, s.Code, s.Result, s.Rows = errPending, "", s.Result[:0], 0
	}
	conn, err := d.acquire(ctx)
	if err != nil {
		setFailed(statements, err)
		for _, s := range statements {
			s.Err = fmt.Errorf("%w: %w", sqlstate.ErrNotSent, err)
		}
		return attemptResult{err: err}
	}
	defer d.release(conn)
	c := memoryOf(conn.Conn().PgConn())
	if c.uses > 0 && !statements[0].Unnamed {
		c.uses--
		return d.runOn(ctx, had, conn, statements, unnamed)
	}
	guarded := session.Guard(statements, c.uses > 0)
	result := d.runOn(ctx, had, conn, guarded, unnamed)
	if err := session.Apart(guarded); err != nil {
		closeConn(conn)
		setFailed(statements, err)
		return attemptResult{err: err}
	}
	if c.uses == 0 {
		c.uses = session.Uses(guarded)
	}
	result.retry = session.Own(result.retry)
	return result
}

// runOn is attempt on a connection.
func (d *DB) runOn(ctx context.Context, had time.Duration, conn *pgxpool.Conn, statements []*pgdb.Statement, unnamed bool) attemptResult {
	b := newPipeline(conn.Conn().PgConn())
	defer b.free()
	b.add(statements, unnamed)
	if len(b.requests) == 0 {
		return attemptResult{}
	}
	answer, stop := answerContext(ctx, had)
	defer stop()
	p := conn.Conn().PgConn().StartPipeline(answer)
	b.send(p)
	if err := p.Flush(); err != nil {
		_ = p.Close()
		setFailed(b.statements(), err)
		if pgconn.SafeToRetry(err) {
			return attemptResult{err: err, retry: b.statements()}
		}
		return attemptResult{err: err}
	}
	result := b.read(p)
	if err := p.Close(); err != nil && result.err == nil {
		result.err = err
	}
	if b.lost {
		d.lost.Add(1)
	}
	if b.close {
		closeConn(conn)
	}
	return result
}

// acquire returns a connection. release must follow.
func (d *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	first := !d.used.Load()
	if first {
		ctx = context.WithValue(ctx, calling{}, true)
	}
	for {
		if err := d.gate.enter(ctx); err != nil {
			return nil, d.withCause(ctx, err)
		}
		conn, err := d.pool.Acquire(ctx)
		if err == nil {
			if d.shared {
				if ok, err := d.usable(ctx, conn); err != nil {
					return nil, err
				} else if !ok {
					continue
				}
			}
			if first {
				d.used.Store(true)
			}
			return conn, nil
		}
		if ctx.Err() != nil {
			d.gate.leave()
			return nil, d.withCause(ctx, err)
		}
		if err := d.gate.refuse(err); err != nil {
			return nil, err
		}
	}
}

// usable does for a connection of the program's pool what the settings of an own pool do: it finds
// out whether the server has ended the connection, which is then released, and compares the encoding.
func (d *DB) usable(ctx context.Context, conn *pgxpool.Conn) (bool, error) {
	if shouldPing(pgxpool.ShouldPingParams{Conn: conn.Conn()}) && conn.Ping(ctx) != nil {
		closeConn(conn)
		d.release(conn)
		return false, nil
	}
	if encoding := conn.Conn().PgConn().ParameterStatus("client_encoding"); encoding != "UTF8" {
		d.release(conn)
		return false, fmt.Errorf("pgxdb: the pool's connections have the client_encoding %s, must have UTF8", encoding)
	}
	return true, nil
}

// release returns a connection to the pool.
func (d *DB) release(conn *pgxpool.Conn) {
	conn.Release()
	d.gate.leave()
}

// withCause adds the failure of the latest login to the error of a call that has run out of
// time, if there is no connection. Over a slow network a login takes longer than a call, so no
// call gets the login's error itself.
func (d *DB) withCause(ctx context.Context, err error) error {
	stat := d.pool.Stat()
	failed := d.logins.failed.Load()
	if ctx.Err() == nil || failed == nil || stat.AcquiredConns()+stat.IdleConns() > 0 {
		return err
	}
	return fmt.Errorf("pgxdb: no connection yet (the last attempt: %s): %w", (*failed).Error(), err)
}

// closeConn closes a connection, so that Release does not keep it.
func closeConn(conn *pgxpool.Conn) {
	_ = conn.Conn().PgConn().Close(context.Background())
}

// setFailed sets an error of several statements.
func setFailed(statements []*pgdb.Statement, err error) {
	for _, s := range statements {
		s.Err, s.Code = err, ""
		if e := serverError(err); e != nil {
			s.Code = e.Code
		}
	}
}

// serverError returns the error that the server reported, or nil if err is
// another one.
func serverError(err error) *pgconn.PgError {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// isFatal reports whether the server ended the session with this error.
func isFatal(e *pgconn.PgError) bool { return e.Severity == "FATAL" || e.Severity == "PANIC" }

// Exec implements pgdb.DB.
func (d *DB) Exec(ctx context.Context, sql string) error {
	conn, err := d.acquire(ctx)
	if err != nil {
		return err
	}
	defer d.release(conn)
	_, err = conn.Conn().PgConn().Exec(ctx, sql).ReadAll()
	if e := serverError(err); e != nil && sqlstate.ClosesConnection(e.Code) {
		closeConn(conn)
	}
	return err
}
