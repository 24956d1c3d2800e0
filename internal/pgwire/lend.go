package pgwire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	// pace is how long one dial may be the only one that is not done yet. A
	// server that does not answer gets one more each pace, not all at once, so
	// that there is always a young one when it comes back.
	pace = 250 * time.Millisecond

	// stuck is how old a dial must be to make way for a new one where there is
	// no room for both.
	stuck = time.Second

	// healthTimeout bounds the question for a sign of life.
	healthTimeout = time.Second
)

// dial is one connection being made, in the background: who wanted it may have
// given up when it is there, and somebody else gets it.
type dial struct {
	ctx        context.Context
	stop       context.CancelFunc
	start      time.Time
	superseded bool
}

// waiter is a call that waits for a connection.
type waiter struct {
	ready chan struct{} // room for one
	done  bool          // c or bad is set; guarded by the pool's mutex
	c     *conn
	bad   *outcome
}

// doubtful looks more closely at a connection that borrow is not sure of. It
// returns nil if the caller has to acquire another one.
func doubtful(p *Pool, ctx context.Context, c *conn) *conn {
	if ctx.Err() != nil {
		c.usable = true
		release(p, c)
		return nil
	}
	if healthy(p, ctx, c) {
		return c
	}
	p.drop(c, false)
	return nil
}

// acquire lends a connection, which the caller then owns until release.
func (p *Pool) acquire(ctx context.Context) (*conn, *outcome) {
	w := &waiter{ready: make(chan struct{}, 1)}
	for {
		if ctx.Err() != nil {
			return nil, &outcome{err: failure(ctx, "no time left", nil)}
		}
		if c := borrow(p, ctx); c != nil {
			return c, nil
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, &outcome{err: errClosed}
		}
		if len(p.idle) == 0 {
			break
		}
		p.mu.Unlock()
	}
	p.waiting = append(p.waiting, w)
	p.grow()
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { p.giveUp(ctx, w) })
	<-w.ready
	stop()
	if w.bad == nil && ctx.Err() != nil {
		w.c.usable = true
		release(p, w.c)
		return nil, &outcome{err: failure(ctx, "no time left", nil)}
	}
	return w.c, w.bad
}

// giveUp ends a wait because ctx ended.
func (p *Pool) giveUp(ctx context.Context, w *waiter) {
	defer func() {
		if r := recover(); r != nil {
			p.o.Logger(panicError(r).Error())
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.done {
		return
	}
	for i := range p.waiting {
		if p.waiting[i] == w {
			p.waiting = append(p.waiting[:i:i], p.waiting[i+1:]...)
			break
		}
	}
	state := fmt.Sprintf("none of the %d connections became free", p.open)
	if p.open == len(p.dials) {
		state = "no connection yet " + p.cfg.whereTo()
		if p.lastError != "" {
			state += " (the last attempt: " + p.lastError + ")"
		}
	}
	p.settle(w, nil, &outcome{err: failure(ctx, state, nil)})
}

// settle ends a wait. The caller holds the mutex and has taken w off the list.
func (p *Pool) settle(w *waiter, c *conn, bad *outcome) {
	w.done = true
	w.c = c
	w.bad = bad
	w.ready <- struct{}{}
}

// whereTo names the other side.
func (c *config) whereTo() string {
	names := make([]string, len(c.targets))
	for i := range c.targets {
		names[i] = c.targets[i].String()
	}
	text := fmt.Sprintf("to %s as user %q", strings.Join(names, ","), c.user)
	if c.dbname != "" {
		text += fmt.Sprintf(" on database %q", c.dbname)
	}
	return text
}

// grow sees whether those who wait need one more dial. The caller holds the mutex.
func (p *Pool) grow() {
	if p.closed || len(p.waiting) == 0 {
		return
	}
	now := time.Now()
	if n := len(p.dials); n > 0 && now.Sub(p.dials[n-1].start) < pace {
		return
	}
	if p.open > 0 && now.Sub(p.failed) < pace {
		return // there are connections, and the server just refused to have more
	}
	if p.open >= p.o.MaxConns {
		for _, d := range p.dials {
			if !d.superseded && now.Sub(d.start) > stuck {
				d.superseded = true
				d.stop() // it ends soon, and dialed calls grow again
				return
			}
		}
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &dial{ctx: ctx, stop: stop, start: now}
	p.dials = append(p.dials, d)
	p.open++
	go p.carryOut(d)
}

// carryOut makes the connection.
func (p *Pool) carryOut(d *dial) {
	defer func() {
		if r := recover(); r != nil {
			p.o.Logger(panicError(r).Error())
		}
	}()
	c, why := connectSafely(d.ctx, p.cfg, &p.hosts)
	d.stop()
	p.dialed(d, c, why)
}

func connectSafely(ctx context.Context, cfg *config, hosts *hostMemory) (c *conn, why *refusal) {
	defer func() {
		if r := recover(); r != nil {
			c = nil
			why = &refusal{text: panicError(r).Error()}
		}
	}()
	return connect(ctx, cfg, hosts)
}

// dialed takes in what came of a dial.
func (p *Pool) dialed(d *dial, c *conn, why *refusal) {
	p.mu.Lock()
	for i := range p.dials {
		if p.dials[i] == d {
			p.dials = append(p.dials[:i:i], p.dials[i+1:]...)
			break
		}
	}
	switch {
	case c != nil && p.closed:
		p.open--
		p.mu.Unlock()
		end(c, true)
		return
	case c != nil:
		p.lastError = ""
		c.lastUsed = time.Since(p.born)
		c.expires = c.lastUsed + jitter(p.o.MaxLifetime)
		c.freshUntil = c.expires
		deliver(p, c)
	default:
		p.open--
		if !d.superseded {
			p.lastError = why.text
			p.failed = time.Now()
		}
		// Whoever has a connection lent will give it back; nobody else will come.
		if !d.superseded && p.open == len(p.idle)+len(p.dials) && len(p.dials) == 0 {
			bad := errors.New("pgwire: no connection " + p.cfg.whereTo() + ": " + why.text)
			for _, w := range p.waiting {
				p.settle(w, nil, &outcome{err: bad, code: why.code})
			}
			p.waiting = nil
		}
	}
	p.grow()
	p.mu.Unlock()
}

// deliver gives a connection to the first who waits, or keeps it. The caller
// holds the mutex.
func deliver(p *Pool, c *conn) {
	c.unnamed = p.unnamed
	if len(p.waiting) > 0 {
		w := p.waiting[0]
		p.waiting = p.waiting[1:]
		p.settle(w, c, nil)
		return
	}
	p.idle = append(p.idle, c)
	if p.reaper == nil {
		p.reaper = time.AfterFunc(p.reapEvery(), p.reap)
	}
}

// release takes a connection back from its owner, who says in c.usable whether it
// is any good.
func release(p *Pool, c *conn) {
	if !c.usable || c.worn || c.r != c.w && !onlyNoise(c) {
		p.drop(c, c.usable)
		return
	}
	rest(c)
	p.mu.Lock()
	c.freshUntil = c.lastUsed + p.o.HealthCheckAfter
	if p.closed {
		p.mu.Unlock()
		p.drop(c, true)
		return
	}
	if len(p.waiting) == 0 && p.reaper != nil {
		c.unnamed = p.unnamed
		p.idle = append(p.idle, c)
	} else {
		deliver(p, c)
	}
	p.mu.Unlock()
}

// drop closes a connection that the caller owns.
func (p *Pool) drop(c *conn, polite bool) {
	end(c, polite)
	p.mu.Lock()
	p.open--
	p.grow()
	p.mu.Unlock()
}
