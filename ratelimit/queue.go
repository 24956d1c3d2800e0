package ratelimit

import "time"

// NewQueue returns a queue for calls that a program Enters itself. It is for one
// to which each operation is dear, because an interpreter runs it: what has to be
// done for every request is done for all requests of a batch in one loop.
//
// fill is called with calls that came since the last batch, and sets their Hits;
// deliver is called with calls that are decided, before their callers go on. Both
// run while the callers wait, in another goroutine. Should one panic, it is called
// again with each call alone, and those with which it panics again fail.
//
// A call fails with ErrClosed after Close, with ErrUnavailable or ErrTimeout as in
// Store.Take. timeout is for the whole decision. Make one queue and keep it: it
// lasts as long as the store.
func (p *Postgres) NewQueue(timeout time.Duration, fill, deliver func(calls []*Call)) *Queue {
	q := p.newQueue(timeout)
	q.deliver = deliver
	q.receive = func(calls []*Call) []*Call { return receive(p, q, fill, calls) }
	p.mu.Lock()
	p.more = append(p.more, q)
	p.mu.Unlock()
	return q
}

// receive fills calls in, and returns those that the database is to be asked about.
func receive(p *Postgres, q *Queue, fill func(calls []*Call), calls []*Call) []*Call {
	for _, c := range calls {
		c.Err = nil
	}
	allWell := runEach(func(calls []*Call) {
		for _, c := range calls {
			c.Hits = c.Hits[:0]
		}
		fill(calls)
	}, calls)
	if !allWell {
		for _, c := range calls {
			if c.Err != nil {
				c.Hits = c.Hits[:0] // they may be half filled in
			}
		}
	}
	begin(calls)
	p.mu.Lock()
	err := p.unavailable()
	p.mu.Unlock()
	if err != nil {
		settle(q, calls, err)
		return nil
	}
	if allWell && !anyBlocked(p.blocked) {
		return calls
	}
	return sift(p, q, calls)
}

// sift settles the calls of which it is known already what becomes of them, and
// returns the others.
func sift(p *Postgres, q *Queue, calls []*Call) []*Call {
	if p.blocked != nil {
		refuseAll(p, calls)
	}
	known := make([]*Call, 0, len(calls))
	left := 0
	for _, c := range calls {
		c.failed = c.Err
		if c.Err != nil || len(c.Decisions) > 0 {
			known = append(known, c)
			continue
		}
		calls[left] = c
		left++
	}
	settle(q, known, nil)
	return calls[:left]
}

// refuseAll decides the calls that blocked rows refuse.
func refuseAll(p *Postgres, calls []*Call) {
	items, refused, passes := p.blocked.known(calls)
	for from, to := 0, 0; from < len(items); from = to {
		for to < len(items) && items[to].limit == items[from].limit {
			to++
		}
		lookAll(items[from:to])
	}
	for i, it := range items {
		left := it.free
		if left < 0 {
			left = 0
		}
		c := refused[i]
		c.Decisions = append(c.Decisions, Decision{Limit: it.quota, Remaining: left, Reset: time.UnixMicro(it.reset),
			RetryAfter: retryAfter(passes[i] - it.now), Source: FromBlocked})
	}
	p.mu.Lock()
	p.stats.Blocked += int64(len(items))
	p.mu.Unlock()
	for _, c := range calls {
		if (len(c.Hits) > 1 || c.gives) && c.Err == nil {
			decisions := make([]Decision, len(c.Hits))
			if refuse(p, c, decisions) {
				c.Decisions = decisions
			}
		}
	}
}

// runEach calls f with all calls. If that panics, it calls f with each alone, sets
// Err in those that are to blame, and returns false.
func runEach(f func(calls []*Call), calls []*Call) bool {
	if tryEach(f, calls) == nil {
		return true
	}
	for i, c := range calls {
		if err := tryEach(f, calls[i:i+1]); err != nil {
			c.Err = err
		}
	}
	return false
}

func tryEach(f func(calls []*Call), calls []*Call) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	f(calls)
	return nil
}
