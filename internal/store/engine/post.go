package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// post is the calls of the store itself that wait for a batch: settlements, and slots that are given back.
// They go with the next batch, or with one without requests if none comes. What leases charge and give back
// waits in package lease, which adds it up.
//
// A call on a locked row waits until the lock may have gone. A call that has failed with others has a
// statement of its own then, in a batch without requests.
type post struct {
	server *server
	queue  *batch.Queue // for batches without requests
	report func(error)

	any int32 // how many calls wait; atomic, so that the usual batch takes no lock

	mu       sync.Mutex // guards all that follows
	waiting  []*ownCall // in the order of arrival
	settling map[settledWindow]*ownCall
	sending  bool // a goroutine sends batches without requests
}

const (
	// mostPosted is how many calls go with a batch: more would delay its requests.
	mostPosted = 500
	// mostAlone is how many of them have a statement of their own.
	mostAlone = 3
	// longestPost is the longest time between two batches without requests, if the one before has taken no calls.
	longestPost = 200 * time.Millisecond
)

func newPost(s *server, q *batch.Queue, report func(error)) *post {
	return &post{server: s, queue: q, report: report, settling: map[settledWindow]*ownCall{}}
}

// add adds a call. If no other batch takes it within wait, a batch without requests does. The caller holds the mutex.
func (p *post) add(c *ownCall, wait time.Duration) {
	p.waiting = append(p.waiting, c)
	atomic.StoreInt32(&p.any, int32(len(p.waiting)))
	if !p.sending {
		p.sending = true
		go p.send(wait)
	}
}

// size is how many calls wait.
func (p *post) size() int { return int(atomic.LoadInt32(&p.any)) }

// send sends batches without requests until no calls wait.
func (p *post) send(wait time.Duration) {
	p.report(batch.PanicError(func() {
		for {
			batch.Sleep(p.server.closing, wait)
			before := p.size()
			if before > 0 && p.server.unavailable() == nil {
				batch.Enter(p.queue, batch.NewCall())
			}
			p.mu.Lock()
			p.sending = len(p.waiting) > 0 && p.server.closing.Err() == nil
			sending := p.sending
			p.mu.Unlock()
			if !sending {
				return
			}
			if wait = 2*wait + time.Millisecond; wait > longestPost {
				wait = longestPost
			}
			if p.size() < before {
				wait = 0
			}
		}
	}))
}

// calls takes the calls that go with a batch.
func (p *post) calls(d *dispatch, requests []*request) []*ownCall {
	var own, left []*ownCall
	if p.size() == 0 {
		return own
	}
	idle := isIdle(requests)
	alone := 0
	settled := map[lease.RowID]bool{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range p.waiting {
		if len(own) == mostPosted {
			left = append(left, p.waiting[i:]...)
			break
		}
		row := c.slots.row
		settles := c.kind == settleCost
		if settles {
			row = c.settlement.row
		}
		locked := d.engine.locks.has(row)
		if locked && c.since.IsZero() {
			c.since = time.Now()
		}
		waited := !c.since.IsZero()
		if locked || waited && (!idle || alone == mostAlone) || settles && settled[row] {
			left = append(left, c)
			continue
		}
		if waited {
			alone++
		}
		if settles {
			settled[row] = true
			delete(p.settling, c.window)
		}
		own = append(own, c)
	}
	p.waiting = left
	atomic.StoreInt32(&p.any, int32(len(left)))
	return own
}

// dropSlots forgets the slots that are to be given back: they have ended with their session.
func (p *post) dropSlots() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var left []*ownCall
	for _, c := range p.waiting {
		if c.kind != leaveSlots {
			left = append(left, c)
		}
	}
	p.waiting = left
	atomic.StoreInt32(&p.any, int32(len(left)))
}

// end sends what waits, before the store is closed.
func (p *post) end() {
	until := time.Now().Add(leaseTimeout)
	for p.size() > 0 && time.Now().Before(until) && p.server.unavailable() == nil {
		before := p.size()
		batch.Enter(p.queue, batch.NewCall())
		if p.size() >= before {
			time.Sleep(time.Millisecond)
		}
	}
}
