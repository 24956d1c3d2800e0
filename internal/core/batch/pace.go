package batch

import "time"

const (
	// The first batches have at most startHits hits: those of all workers together must fit into a timeout of a slow
	// server. A batch has at most firstHits hits. A batch may have up to mostHits while a full batch
	// takes hardly longer than a small one: then its time is the latency of the connection,
	// and more hits cost nothing. A batch may have only leastHits while full batches take
	// too much of the timeout. The last call of a batch may exceed the bound.
	leastHits = 8
	startHits = 100
	firstHits = 400
	mostHits  = 4000

	// smallBatch is the most hits of a batch that shows a higher latency than before.
	smallBatch = 100
)

// pace is what a queue has learned from its batches. The queue's mutex guards it.
type pace struct {
	batchTime time.Duration // how long batches take lately
	latency   time.Duration // how long the fastest ones take; 0 is unknown
	most      int           // the most hits of the next batch
	full      int           // how many batches had that many hits
}

// sample is how a batch went.
type sample struct {
	took time.Duration
	late bool // it took a timeout, or its deadline has passed
	hits int
	most int  // what pace.most was when it set out
	only bool // no other batch was in flight then
}

// learn changes the pace after a batch.
func (p *pace) learn(o sample, timeout time.Duration, workers int) {
	if o.took > p.batchTime {
		p.batchTime = (p.batchTime + o.took) / 2
	} else {
		p.batchTime = (3*p.batchTime + o.took) / 4
	}
	if !o.late {
		switch {
		case p.latency == 0 || o.took < p.latency:
			p.latency = o.took // no batch is faster than the connection
		case o.only && o.hits <= smallBatch && o.hits <= o.most/4 || o.most == leastHits:
			p.latency = (7*p.latency + o.took) / 8 // other hits took no time
		}
	}
	if o.most != p.most {
		return // the bound has changed since
	}
	// A request can take two round trips. That is no sign of a busy server.
	slow := o.took > timeout/4 && o.took > p.latency*5/2
	switch {
	case slow && o.late:
		p.setMost(p.most / 2)
	case o.late || o.hits < o.most:
	case slow:
		p.setMost(p.most * 3 / 4)
	case p.full < workers-1: // the batches beside this one had fewer hits
		p.full++
	case o.took <= p.latency*3/2 || p.most < firstHits && o.took < timeout/8:
		p.setMost(p.most * 3 / 2)
	case p.most > firstHits:
		most := p.most * 3 / 4
		if most < firstHits {
			most = firstHits
		}
		p.setMost(most)
	}
}

// setMost sets the most hits of the next batch.
func (p *pace) setMost(most int) {
	if most < leastHits {
		most = leastHits
	}
	if most > mostHits {
		most = mostHits
	}
	p.most = most
	p.full = 0
}

// longestWait is how long a call may have waited and still be worth a batch: a batch has a timeout. While the database
// does not answer, a call must have more time left than batches take. A call that has waited for no more than a fifth
// of its timeout is always worth it, or a slow batch could be the last one.
func longestWait(p *pace, timeout time.Duration, silent bool) time.Duration {
	if !silent {
		return (MostTimeouts - 1) * timeout
	}
	wait := timeout - p.batchTime - p.batchTime/4
	if wait < timeout/5 {
		return timeout / 5
	}
	return wait
}
