package pgwire

import (
	"context"
	"math/rand"
	"time"
)

// healthy reports whether a connection that was idle may be used.
func healthy(p *Pool, ctx context.Context, c *conn) bool {
	// What came may be the notice of a shutdown, and its end a moment away.
	noisy := len(c.event) > 0
	if noisy && !settled(c) {
		return false
	}
	now := time.Since(p.born)
	if now > c.expires {
		return false
	}
	if now <= c.freshUntil && !noisy {
		return true
	}
	// A firewall may have forgotten the connection, and then nobody answers:
	// leave time for a new one.
	patience := healthTimeout
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline)/2 < patience {
		patience = time.Until(deadline) / 2
	}
	if check(ctx, c, patience) {
		return true
	}
	if ctx.Err() == nil {
		p.dropIdle() // they have been idle for even longer
	}
	return false
}

// dropIdle closes all idle connections.
func (p *Pool) dropIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		p.drop(c, false)
	}
}

// reapEvery is the time between two looks at the idle connections.
func (p *Pool) reapEvery() time.Duration {
	every := p.o.IdleTimeout / 2
	if every > 30*time.Second {
		every = 30 * time.Second
	}
	return every + time.Millisecond
}

// reap closes idle connections whose time is over or whose server is gone. A
// timer calls it as long as there are idle connections.
func (p *Pool) reap() {
	defer func() {
		if r := recover(); r != nil {
			p.o.Logger(panicError(r).Error())
		}
	}()
	now := time.Since(p.born)
	var over, kept []*conn
	p.mu.Lock()
	p.reaper = nil
	if p.closed {
		p.mu.Unlock()
		return
	}
	for _, c := range p.idle {
		if now-c.lastUsed >= p.o.IdleTimeout || now > c.expires || !settled(c) {
			over = append(over, c)
		} else {
			kept = append(kept, c)
		}
	}
	p.idle = kept
	if len(kept) > 0 {
		p.reaper = time.AfterFunc(p.reapEvery(), p.reap)
	}
	p.mu.Unlock()
	for _, c := range over {
		p.drop(c, true)
	}
}

// jitter is d, give or take a tenth, so that connections made together do not
// end together.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(rand.Int63n(int64(d/5)+1))
}

// cancel closes a connection whose server still works, after asking it to stop,
// in the background. The caller owns c, and must release it all the same.
func (p *Pool) cancel(c *conn) {
	p.mu.Lock()
	tooMany := p.cancels >= p.o.MaxConns
	if !tooMany {
		p.cancels++
	}
	p.mu.Unlock()
	if tooMany {
		return
	}
	c.lingers = true
	go p.cancelSafely(c)
}

func (p *Pool) cancelSafely(c *conn) {
	defer func() {
		if r := recover(); r != nil {
			p.o.Logger(panicError(r).Error())
		}
		_ = c.raw.Close()
		p.mu.Lock()
		p.cancels--
		p.mu.Unlock()
	}()
	cancelRequest(c)
}

// Close implements ratelimit.DB. It does not wait for calls under way: they
// finish, and their connections are closed then. Closing twice is no error.
func (p *Pool) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	idle, waiting := p.idle, p.waiting
	p.idle = nil
	p.waiting = nil
	for _, w := range waiting {
		p.settle(w, nil, &outcome{err: errClosed})
	}
	for _, d := range p.dials {
		d.stop()
	}
	if p.reaper != nil {
		p.reaper.Stop()
	}
	p.mu.Unlock()
	for _, c := range idle {
		p.drop(c, true)
	}
}
