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
func (p *Pool) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	return pg.Run(ctx, timeout, p.runner, statements, func(statements []*pgdb.Statement, a *pg.Attempt) {
		c, unavailable := acquire(p, ctx, timeout)
		if unavailable != nil {
			a.NotSent(statements, unavailable)
			return
		}
		a.GivenUp = runOn(p, ctx, timeout, c, func() bool {
			c.uses = a.SendGuarded(c.uses, statements,
				func(guarded []*pgdb.Statement) { pipeline(ctx, c, guarded, a) })
			return a.Err == nil && !a.Close
		})
	})
}

// runOn calls do on a connection that the caller owns, and releases the connection. do sends a request, and
// reports whether another call may use the connection after it. The result is that of pg.Attempt.GivenUp.
func runOn(p *Pool, ctx context.Context, timeout time.Duration, c *conn, do func() bool) <-chan struct{} {
	c.usable = false
	defer release(p, c)
	if c.timeout = timeout; timeout == 0 {
		c.timeout = -1 // 0 is the timeout of a login
	}
	stop := context.AfterFunc(ctx, c.interrupt)
	usable := do()
	if stop() {
		c.usable = usable
		_ = c.raw.SetDeadline(time.Time{})
	}
	if !c.timedOut {
		return nil
	}
	c.ended = make(chan struct{})
	if c.usable {
		return nil
	}
	return c.ended
}

// startTimeout starts the timeout of a request that is about to be sent. A login has a deadline instead.
func startTimeout(ctx context.Context, c *conn) {
	if c.timeout == 0 {
		return
	}
	c.lateReads = 0
	_ = c.raw.SetDeadline(time.Now().Add(c.timeout))
	if ctx.Err() != nil {
		c.interrupt() // again: the new deadline has undone it
	}
}

// errPending is the Err of a statement until its result is known.
var errPending = errors.New("pgwire: not answered")
