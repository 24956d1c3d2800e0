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

// maxLostStatements is the number of times that prepared statements may be lost before the DB stops preparing
// statements.
const maxLostStatements = 2

// Run implements pgdb.DB.
func (d *DB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	return pg.Run(ctx, statements,
		func(statements []*pgdb.Statement, a *pg.Attempt) { d.try(ctx, statements, a) })
}

// try runs statements on a connection of the pool.
func (d *DB) try(ctx context.Context, statements []*pgdb.Statement, a *pg.Attempt) {
	for _, s := range statements {
		s.Err, s.Code, s.Result, s.Rows = nil, "", s.Result[:0], 0
	}
	conn, err := d.acquire(ctx)
	if err != nil {
		pg.SetFailed(statements, fmt.Errorf("%w: %w", pg.ErrNotSent, err), serverError(err).Code)
		a.Err = err
		return
	}
	defer d.release(conn)
	c := connectionOf(conn.Conn().PgConn())
	answer, stop := answerContext(ctx, a.Timeout)
	defer stop()
	a.Unnamed = a.Unnamed || d.lost.Load() >= maxLostStatements
	c.unguarded = a.SendGuarded(c.unguarded, statements,
		func(guarded []*pgdb.Statement) { c.run(answer, guarded, a) })
	if a.Lost {
		d.lost.Add(1)
	}
	if a.Close {
		closeConn(conn)
	}
}

// answerContext returns the context for the answer to statements that are about to be sent. It ends like ctx,
// but the deadline of ctx is replaced by a timeout from now, which bounds the database and not this process.
// A timeout of 0 means that ctx has no deadline.
func answerContext(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return ctx, func() {}
	}
	answer, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
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
	if pg.ClosesConnection(serverError(err).Code) {
		closeConn(conn)
	}
	return err
}

// closeConn closes a connection, so that the pool does not keep it.
func closeConn(conn *pgxpool.Conn) { _ = conn.Conn().PgConn().Close(context.Background()) }

// serverError returns the error of the server in err. Its Code is "" if err has none.
func serverError(err error) *pg.ServerError {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return &pg.ServerError{Err: err}
	}
	return &pg.ServerError{Severity: e.Severity, Code: e.Code, Message: e.Message, Routine: e.Routine,
		Err: err}
}
