package pgwire

import (
	"math/rand"
	"time"
)

// checkIdleLater schedules closeExpired. The caller holds the mutex.
func (p *Pool) checkIdleLater() {
	p.idleTimer = time.AfterFunc(p.cfg.idleTimeout/2+time.Millisecond, p.closeExpired)
}

// closeExpired closes idle connections that are too old, were idle for too long, received something, or lead
// to a replaced primary. It keeps one connection regardless of its idle time, and opens a connection if none
// is left, so that a request after a quiet time does not wait for a login. A timer calls closeExpired again
// and again, once the pool had an idle connection.
func (p *Pool) closeExpired() {
	defer p.logPanic()
	now := time.Since(p.created)
	var expired, idle []*conn
	p.mu.Lock()
	p.idleTimer = nil
	if p.closed {
		p.mu.Unlock()
		return
	}
	for _, c := range p.idle {
		if !p.fresh(c, now) || now-c.lastUsed >= p.cfg.idleTimeout && p.open-len(expired) > 1 {
			expired = append(expired, c)
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

// jitter returns d plus or minus up to a tenth, so that connections made together do not expire together.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(rand.Int63n(int64(d/5)+1))
}
