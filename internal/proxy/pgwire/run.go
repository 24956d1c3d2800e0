package pgwire

import (
	"context"
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A statement usually takes the path Run, acquire, runOn, pipeline, appendStatement, fill, readResponse,
// release. doc.go explains the form of these functions.

// Run implements pgdb.DB.
func (p *Pool) Run(ctx context.Context, statements []*pgdb.Statement) error {
	return pg.Run(ctx, &p.lost, statements, func(statements []*pgdb.Statement, a *pg.Attempt) {
		c, unavailable := acquire(p, ctx)
		if unavailable == nil {
			runOn(p, ctx, c, statements, a)
			return
		}
		a.NotSent(statements, unavailable)
	})
}

// runOn runs statements on a connection that the caller owns, and releases the connection. The deadline of
// ctx does not interrupt runOn, because a.Timeout starts when the request is sent.
func runOn(p *Pool, ctx context.Context, c *conn, statements []*pgdb.Statement, a *pg.Attempt) {
	c.usable = false
	defer release(p, c)
	c.timeout = a.Timeout
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.interrupt()
		}
	})
	c.uses = a.SendGuarded(c.uses, statements,
		func(guarded []*pgdb.Statement) { pipeline(ctx, c, guarded, a) })
	c.usable = stop() || errors.Is(ctx.Err(), context.DeadlineExceeded)
	if c.timeout > 0 && c.usable {
		_ = c.raw.SetDeadline(time.Time{})
	}
	if a.Err != nil || a.Close {
		c.usable = false
	}
	cancelIfLate(p, c)
}

// errPending is the Err of a statement until its result is known.
var errPending = errors.New("pgwire: not answered")
