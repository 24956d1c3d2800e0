package engine

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// refusing are the rows that are likely to refuse a request of several hits: for a second after a refusal, and as long
// as too little was left of them when they were last seen. A transaction on one of them looks before it takes, see
// transaction.go.
type refusing struct {
	some int32 // 1 if there are rows; atomic, so that the usual batch takes no lock

	mu    sync.Mutex // guards what follows
	until map[lease.RowID]time.Time
}

const (
	leastRefusing = time.Second
	mostRefusing  = 24 * time.Hour

	// maxRefusing bounds the rows. One that is displaced may cost a transaction that is undone.
	maxRefusing = 20000
)

// add adds a row that is refusing for a time.
func (r *refusing) add(id lease.RowID, wait time.Duration) {
	if wait > mostRefusing {
		wait = mostRefusing
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[lease.RowID]time.Time{}
	}
	until, known := r.until[id]
	if !known && len(r.until) >= maxRefusing {
		r.makeRoom(now)
	}
	if !known {
		id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	}
	if end := now.Add(wait); end.After(until) {
		r.until[id] = end
	}
	atomic.StoreInt32(&r.some, 1)
}

// makeRoom deletes the rows that are not refusing any more, or else any row. The caller holds the mutex.
func (r *refusing) makeRoom(now time.Time) {
	for id, until := range r.until {
		if now.After(until) {
			delete(r.until, id)
		}
	}
	for id := range r.until {
		if len(r.until) < maxRefusing {
			return
		}
		delete(r.until, id)
	}
}

// learn adds the rows of a plan that was carried out of which too little is left for another of its hits.
func (r *refusing) learn(p *plan) {
	for _, e := range p.entries[:p.usedEntries] {
		if e.kind == take && e.view.Free < e.cost {
			l := e.view.Limit
			r.add(e.id, algorithm.RetryAfter(algorithm.Of(l).Passes(l, &e.view.Row, e.view.Now, e.cost)-e.view.Now))
		}
	}
}

// has reports whether one of the rows of requests is refusing.
func (r *refusing) has(requests []*request) bool {
	if atomic.LoadInt32(&r.some) == 0 {
		return false
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range requests {
		hits := q.call.Hits
		for i := range hits {
			id := rowOf(&hits[i])
			if now.Before(r.until[id]) {
				return true
			}
			delete(r.until, id)
		}
	}
	if len(r.until) == 0 {
		atomic.StoreInt32(&r.some, 0)
	}
	return false
}
