package pgwire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

const (
	// dialInterval is the minimum time between the starts of two dials while the first is not finished. While
	// a server does not respond, dials start one after another, so that a recent dial is in progress when the
	// server returns.
	dialInterval = 250 * time.Millisecond

	// replaceAfter is the age from which a new dial replaces a dial if MaxConns does not allow both.
	replaceAfter = time.Second
)

// dial is an attempt to make a connection, in its own goroutine. If the call that started it ends first,
// another call gets the connection.
type dial struct {
	ctx      context.Context
	stop     context.CancelFunc
	start    time.Time
	replaced bool // guarded by the pool's mutex
}

// dialIfNeeded starts a dial if calls wait and the pool may connect. The caller holds the mutex.
func (p *Pool) dialIfNeeded() {
	if p.closed || len(p.waiters) == 0 {
		return
	}
	now := time.Now()
	if n := len(p.dials); n > 0 && now.Sub(p.dials[n-1].start) < dialInterval {
		return
	}
	if p.open > 0 && now.Sub(p.lastFailure) < dialInterval {
		return // the server has just refused a connection, and calls can use the open ones
	}
	if p.open >= p.cfg.maxConns {
		for _, d := range p.dials {
			if !d.replaced && now.Sub(d.start) > replaceAfter {
				d.replaced = true
				d.stop() // dialFinished then starts the new one
				return
			}
		}
		return
	}
	p.startDial()
}

// startDial starts a dial unconditionally. The caller holds the mutex.
func (p *Pool) startDial() {
	ctx, stop := context.WithCancel(context.Background())
	d := &dial{ctx: ctx, stop: stop, start: time.Now()}
	p.dials = append(p.dials, d)
	p.open++
	go p.runDial(d)
}

func (p *Pool) runDial(d *dial) {
	defer p.logPanic()
	c, failure := connectSafely(d.ctx, p)
	d.stop()
	p.dialFinished(d, c, failure)
}

func connectSafely(ctx context.Context, p *Pool) (c *conn, failure *connectError) {
	defer func() {
		if r := recover(); r != nil {
			c = nil
			failure = &connectError{text: panicError(r).Error()}
		}
	}()
	cfg, err := p.currentConfig()
	if err != nil {
		return nil, &connectError{text: err.Error()}
	}
	return connect(ctx, cfg, &p.targets)
}

// dialFinished puts a new connection into the pool. If the dial failed and no other connection exists or is
// being made, dialFinished ends all waits with the error of the dial.
func (p *Pool) dialFinished(d *dial, c *conn, failure *connectError) {
	p.mu.Lock()
	for i := range p.dials {
		if p.dials[i] == d {
			p.dials = append(p.dials[:i:i], p.dials[i+1:]...)
			break
		}
	}
	switch {
	case c != nil && (p.closed || c.generation != atomic.LoadInt32(&p.targets.generation)):
		p.mu.Unlock()
		p.drop(c, true)
		return
	case c != nil:
		p.lastError = ""
		c.lastUsed = time.Since(p.created)
		c.expires = c.lastUsed + jitter(p.cfg.maxLifetime)
		c.uses = p.uses
		putConn(p, c)
	default:
		p.open--
		if !d.replaced {
			p.lastError = failure.text
			p.lastFailure = time.Now()
			// If another connection is in use or being made, the waiters wait for it.
			if len(p.dials) == 0 && p.open == len(p.idle)+p.cancels {
				err := errors.New("pgwire: no connection " + p.login.destination() + ": " + failure.text)
				for _, w := range p.waiters {
					p.endWait(w, nil, &pg.ServerError{Err: err, Code: failure.code, Message: failure.text})
				}
				p.waiters = nil
			}
		}
		// For the calls that still wait, a timer starts another dial, because no later call may arrive to
		// start it.
		time.AfterFunc(dialInterval, p.redial)
	}
	p.dialIfNeeded()
	p.mu.Unlock()
}

// redial starts a dial if calls wait and the latest failure is no longer recent.
func (p *Pool) redial() {
	defer p.logPanic()
	p.mu.Lock()
	p.dialIfNeeded()
	p.mu.Unlock()
}

// destination describes the targets, the user and the database for errors.
func (c *config) destination() string {
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

// logPanic recovers from a panic and logs the panic, because a panic in a goroutine would end the program.
// Use logPanic with defer.
func (p *Pool) logPanic() {
	if r := recover(); r != nil {
		p.cfg.log(panicError(r).Error())
	}
}
