package pgwire

import (
	"math/rand"
	"sync/atomic"
	"time"
)

// checkIdleLater has closeExpired called. The caller holds the mutex.
func (p *Pool) checkIdleLater() {
	p.idleTimer = time.AfterFunc(p.cfg.idleTimeout/2+time.Millisecond, p.closeExpired)
}

// closeExpired closes the idle connections that are too old, were idle for too long, got something
// from the server, or are to a primary that was replaced. After a quiet time, a request should not
// wait for a login: one connection is kept however long it is idle, and if none is left, closeExpired
// opens another. A timer calls closeExpired from the first idle connection on.
func (p *Pool) closeExpired() {
	defer p.logPanic()
	now := time.Since(p.created)
	var expired, good, idle []*conn
	p.mu.Lock()
	p.idleTimer = nil
	if p.closed {
		p.mu.Unlock()
		return
	}
	for _, c := range p.idle {
		if now > c.expires || c.generation != atomic.LoadInt32(&p.targets.generation) || len(c.readDone) > 0 {
			expired = append(expired, c)
		} else {
			good = append(good, c)
		}
	}
	left := p.open - len(expired)
	for _, c := range good {
		if now-c.lastUsed >= p.cfg.idleTimeout && left > 1 {
			expired = append(expired, c)
			left--
		} else {
			idle = append(idle, c)
		}
	}
	p.idle = idle
	p.checkIdleLater()
	p.mu.Unlock()
	for _, c := range expired {
		p.drop(c, true)
	}
	p.mu.Lock()
	if p.open == 0 && !p.closed {
		p.startDial()
	}
	p.mu.Unlock()
}

// jitter returns d plus or minus up to a tenth, so that connections made together
// do not expire together.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(rand.Int63n(int64(d/5)+1))
}
