package pgwire

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// waiter is a call that waits for a connection. It is in Pool.waiters until its wait ends. Until then, the
// pool's mutex guards ended, c and failure.
type waiter struct {
	ready   chan struct{} // receives one value when ended is set
	ended   bool          // the wait has ended: c or failure is set
	c       *conn
	failure *pg.ServerError // with the Code of a server that refused a login
}

// fresh reports whether an idle connection may be used: it is not too old, leads to the current primary, and
// has received nothing since its last use.
func (p *Pool) fresh(c *conn, now time.Duration) bool {
	return now <= c.expires && c.generation == atomic.LoadInt32(&p.targets.generation) && len(c.readDone) == 0
}

// acquire returns the most recently used idle connection, or waits for a connection, for up to timeout. The
// caller owns the connection until release or drop. acquire drops a connection that received anything while
// it was idle: the end of the connection, an error before its end, or, rarely, a notice.
func acquire(p *Pool, ctx context.Context, timeout time.Duration) (*conn, *pg.ServerError) {
	now := time.Since(p.created)
	for {
		if ctx.Err() != nil {
			return nil, &pg.ServerError{Err: errLate}
		}
		p.mu.Lock()
		n := len(p.idle) - 1
		if n < 0 {
			return p.wait(ctx, timeout)
		}
		c := p.idle[n]
		p.idle = p.idle[:n]
		p.mu.Unlock()
		c.lastUsed = now
		if p.fresh(c, now) {
			return c, nil
		}
		p.drop(c, true)
	}
}

// wait waits for a connection, for up to timeout. The caller holds the mutex, and wait unlocks the mutex.
func (p *Pool) wait(ctx context.Context, timeout time.Duration) (*conn, *pg.ServerError) {
	if p.closed {
		p.mu.Unlock()
		return nil, &pg.ServerError{Err: errClosed}
	}
	w := &waiter{ready: make(chan struct{}, 1)}
	p.waiters = append(p.waiters, w)
	p.dialIfNeeded()
	p.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(limited, func() { p.cancelWait(limited, w) })
	<-w.ready
	stop()
	if w.failure == nil && ctx.Err() != nil {
		w.c.usable = true
		release(p, w.c)
		return nil, &pg.ServerError{Err: errLate}
	}
	return w.c, w.failure
}

// cancelWait ends the wait of w with the error of ctx.
func (p *Pool) cancelWait(ctx context.Context, w *waiter) {
	defer p.logPanic()
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.ended {
		return
	}
	for i := range p.waiters {
		if p.waiters[i] == w {
			p.waiters = append(p.waiters[:i:i], p.waiters[i+1:]...)
			break
		}
	}
	if p.open > len(p.dials)+p.cancels {
		p.endWait(w, nil, &pg.ServerError{Err: fmt.Errorf(
			"%w: pgwire: none of the %d connections became free: %w", pg.ErrBusy, p.open, ctx.Err())})
		return
	}
	state := "no connection yet " + p.login.destination()
	if p.lastError != "" {
		state += " (the last attempt: " + p.lastError + ")"
	}
	p.endWait(w, nil, &pg.ServerError{Err: fmt.Errorf("pgwire: %s: %w", state, ctx.Err())})
}

// endWait passes a connection or an error to a waiter. The caller holds the mutex and removes w from
// Pool.waiters.
func (p *Pool) endWait(w *waiter, c *conn, failure *pg.ServerError) {
	w.ended = true
	w.c = c
	w.failure = failure
	w.ready <- struct{}{}
}

// release returns a connection to the pool if c.usable is set, and otherwise closes the connection. release
// also closes a connection to a replaced primary, and a connection with unread bytes in its buffer, because
// the next call would read these bytes as its response.
func release(p *Pool, c *conn) {
	if !c.usable || c.discard || c.r != c.w || c.generation != atomic.LoadInt32(&p.targets.generation) {
		p.drop(c, c.usable)
		return
	}
	startWatching(c)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.drop(c, true)
		return
	}
	putConn(p, c)
	p.mu.Unlock()
}

// putConn passes a connection to the first waiter, or adds it to the idle connections. The caller holds the
// mutex.
func putConn(p *Pool, c *conn) {
	if len(p.waiters) > 0 {
		w := p.waiters[0]
		p.waiters = p.waiters[1:]
		p.endWait(w, c, nil)
		return
	}
	p.idle = append(p.idle, c)
	if p.idleTimer == nil {
		p.checkIdleLater()
	}
}

// drop closes a connection that the caller owns, after a Terminate message if terminate is set. If the
// connection has timed out, runCancel closes it later.
func (p *Pool) drop(c *conn, terminate bool) {
	closeConn(c, terminate)
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.ended != nil {
		p.cancels++
		go p.runCancel(c)
		return
	}
	p.open--
	p.dialIfNeeded()
}
