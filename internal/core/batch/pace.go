package batch

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
)

const (
	// startHits bounds the hits of the first batches, so that a slow server can decide the batches of all
	// workers within a timeout. After that the bound adapts:
	//   - It grows to firstHits, and further to ceilingHits while a full batch takes hardly longer than a
	//     small one, because then the latency of the connection is the time of a batch, and more hits cost
	//     nothing.
	//   - It falls, down to floorHits, while full batches take too much of the timeout.
	//
	// The last call of a batch may exceed the bound.
	floorHits   = 8
	startHits   = 100
	firstHits   = 400
	ceilingHits = 4000

	// smallBatch is the size, in hits, up to which a slower batch raises the measured latency.
	smallBatch = 100
)

// pace adapts the size of batches to the time that they take. The queue's mutex guards it.
type pace struct {
	batchTime   time.Duration // a moving average of the time of batches
	latency     time.Duration // the time of the fastest batches; 0 if unknown
	maxHits     int           // the bound on the hits of the next batch
	fullBatches int           // the number of batches that reached maxHits since it was set
}

// sample describes a finished batch.
type sample struct {
	took    time.Duration
	late    bool // took is a timeout or more, or the deadline has passed
	hits    int
	maxHits int  // pace.maxHits when the batch was collected
	only    bool // no other batch was in flight then
}

// update adapts the pace after a batch.
func (p *pace) update(s sample, timeout time.Duration, workers int) {
	if s.took > p.batchTime {
		p.batchTime = (p.batchTime + s.took) / 2
	} else {
		p.batchTime = (3*p.batchTime + s.took) / 4
	}
	if !s.late {
		switch {
		case p.latency == 0 || s.took < p.latency:
			p.latency = s.took // batches cannot be faster than the connection
		case s.only && s.hits <= smallBatch && s.hits <= s.maxHits/4 || s.maxHits == floorHits:
			p.latency = (7*p.latency + s.took) / 8 // the hits of a small batch do not explain this time
		}
	}
	if s.maxHits != p.maxHits {
		return // the bound has changed since
	}
	// A request can take two round trips, which does not mean that the server is busy.
	slow := s.took > timeout/4 && s.took > p.latency*5/2
	switch {
	case slow && s.late:
		p.setMaxHits(p.maxHits / 2)
	case s.late || s.hits < s.maxHits:
	case slow:
		p.setMaxHits(p.maxHits * 3 / 4)
	case p.fullBatches < workers-1: // the batches beside this one had fewer hits
		p.fullBatches++
	case s.took <= p.latency*3/2 || p.maxHits < firstHits && s.took < timeout/8:
		p.setMaxHits(p.maxHits * 3 / 2)
	case p.maxHits > firstHits:
		hits := p.maxHits * 3 / 4
		if hits < firstHits {
			hits = firstHits
		}
		p.setMaxHits(hits)
	}
}

// setMaxHits sets maxHits within its bounds.
func (p *pace) setMaxHits(hits int) {
	if hits < floorHits {
		hits = floorHits
	}
	if hits > ceilingHits {
		hits = ceilingHits
	}
	p.maxHits = hits
	p.fullBatches = 0
}

// maxWait returns the longest time that a call may have waited and still join a batch. It leaves a timeout
// for the batch, or during an outage somewhat more than the time that recent batches took. A call that has
// waited for at most a fifth of its timeout always joins, because otherwise no batch might follow a slow one,
// and batchTime could not fall.
func maxWait(p *pace, timeout time.Duration, outage bool) time.Duration {
	if !outage {
		return health.Patience(timeout, outage) - timeout
	}
	wait := timeout - p.batchTime - p.batchTime/4
	if wait < timeout/5 {
		return timeout / 5
	}
	return wait
}
