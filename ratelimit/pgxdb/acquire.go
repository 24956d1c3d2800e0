package pgxdb

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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

// logins records how the latest login ended. It is a tracer of pgx, which calls the tracer for
// each login, also if no call waits for the login any more.
type logins struct {
	failed atomic.Pointer[error] // nil after a login that succeeded
}

var _ pgx.ConnectTracer = (*logins)(nil)

func (l *logins) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

func (l *logins) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	if data.Err == nil {
		l.failed.Store(nil)
		return
	}
	l.failed.Store(&data.Err)
}

// A tracer of pgx has to trace queries, too. They change nothing here.
func (l *logins) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (l *logins) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
