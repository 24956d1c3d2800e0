package pgxdb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// withholdTime is the time for which slots are withheld after a failed attempt to connect.
const withholdTime = 250 * time.Millisecond

// maxLoginRetries is the number of times that a call retries a login, if the server refused it for too many
// connections and the pool has none. A retry may succeed, because a server also counts logins under way and
// sessions that are ending, and may therefore refuse all of several concurrent logins.
const maxLoginRetries = 3

var errClosed = errors.New("pgxdb: the DB is closed")

// acquire returns a connection for a call, which calls release afterwards. It waits for up to timeout.
func (d *DB) acquire(ctx context.Context, timeout time.Duration) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	opensPool := !d.used.Load()
	if opensPool {
		ctx = context.WithValue(ctx, callKey{}, true)
	}
	for retries := 0; ; {
		if d.closed.Load() {
			return nil, errClosed
		}
		select {
		case <-d.slots:
		case <-ctx.Done():
			return nil, d.withCause(ctx, fmt.Errorf("%w: pgxdb: none of the %d connections became free: %w",
				pg.ErrBusy, d.MaxConns(), ctx.Err()))
		}
		conn, err := d.pool.Acquire(ctx)
		switch {
		case err == nil:
			if opensPool {
				d.used.Store(true)
			}
			encoding := conn.Conn().PgConn().ParameterStatus("client_encoding")
			if encoding == "UTF8" {
				return conn, nil
			}
			d.release(conn)
			return nil, fmt.Errorf(
				"pgxdb: the pool's connections have the client_encoding %s, must have UTF8", encoding)
		case ctx.Err() != nil || d.connections() == 0 &&
			(serverError(err).Code != pg.TooManyConnections || retries == maxLoginRetries):
			d.slots <- struct{}{}
			return nil, d.withCause(ctx, err)
		case d.connections() > 0:
			d.withhold()
		default:
			retries++
			wait(ctx, time.Duration(rand.Int64N(int64(withholdTime)))) // others try at other times
			d.slots <- struct{}{}
		}
	}
}

// withhold takes slots out of use for withholdTime: that of the caller, which could not connect, and each
// free slot beyond the number of idle connections. So no call tries to connect, and the caller waits until
// another call releases a connection.
//
// The slots bound how many calls have a connection or open one. The pool's own bound is not enough: a server
// may allow fewer connections.
func (d *DB) withhold() {
	withheld := 1
	for idle := int(d.pool.Stat().IdleConns()); len(d.slots) > idle; {
		select {
		case <-d.slots:
			withheld++
		default:
		}
	}
	time.AfterFunc(withholdTime, func() {
		for range withheld {
			d.slots <- struct{}{}
		}
	})
}

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// connections returns the number of open connections.
func (d *DB) connections() int32 {
	stat := d.pool.Stat()
	return stat.AcquiredConns() + stat.IdleConns()
}

// release returns a connection to the pool, and its slot.
func (d *DB) release(conn *pgxpool.Conn) {
	conn.Release()
	d.slots <- struct{}{}
}

// withCause adds the latest login's failure to err, if the call ran out of time while the pool was empty.
// Over a slow network a login takes longer than a call, so no call would otherwise get the error of a login.
func (d *DB) withCause(ctx context.Context, err error) error {
	failure := d.logins.ended.Load()
	if ctx.Err() == nil || failure == nil || *failure == nil || d.connections() > 0 {
		return err
	}
	return fmt.Errorf("pgxdb: no connection yet (the last attempt: %s): %w", (*failure).Error(), err)
}
