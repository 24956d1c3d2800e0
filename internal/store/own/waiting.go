package own

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// Waiting is the calls that wait for a batch. They go with the next one, or with one without requests if none comes.
//
// A call on a locked row waits until the lock may have gone. A call that has failed with others has a statement of its
// own then, in a batch without requests.
type Waiting struct {
	database *Database

	any int32 // how many calls wait; atomic, so that the usual batch takes no lock

	mu      sync.Mutex // guards all that follows
	calls   []*Call    // in the order of arrival
	sending bool       // a goroutine sends batches without requests
}

const (
	// mostAlone is how many of them have a statement of their own.
	mostAlone = 3
	// LongestWait is the longest time between two batches without requests, if the one before has taken no calls.
	LongestWait = 200 * time.Millisecond
)

// NewWaiting returns what has no calls yet.
func NewWaiting(d *Database) *Waiting { return &Waiting{database: d} }

// Add adds a call. If no other batch takes it within wait, a batch without requests does.
func (w *Waiting) Add(c *Call, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.waits = true
	w.calls = append(w.calls, c)
	atomic.StoreInt32(&w.any, int32(len(w.calls)))
	if !w.sending {
		w.sending = true
		go w.send(wait)
	}
}

// Join adds what a call does to another one that waits. It reports whether that one does still wait.
func (w *Waiting) Join(c, other *Call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !other.waits {
		return false
	}
	other.N = algorithm.AddRefund(other.N, c.N)
	if other.Since.IsZero() {
		other.Since = c.Since
	}
	return true
}

// size is how many calls wait.
func (w *Waiting) size() int { return int(atomic.LoadInt32(&w.any)) }

// send sends batches without requests until no calls wait.
func (w *Waiting) send(wait time.Duration) {
	d := w.database
	d.Report(batch.PanicError(func() {
		for {
			batch.Sleep(d.Closing, wait)
			before := w.size()
			if before > 0 && d.Unavailable() == nil {
				d.Send()
			}
			w.mu.Lock()
			w.sending = len(w.calls) > 0 && d.Closing.Err() == nil
			sending := w.sending
			w.mu.Unlock()
			if !sending {
				return
			}
			if wait = 2*wait + time.Millisecond; wait > LongestWait {
				wait = LongestWait
			}
			if w.size() < before {
				wait = 0
			}
		}
	}))
}

// Calls takes the calls that go with a batch.
func (w *Waiting) Calls(b Batch) []*Call {
	var taken, left []*Call
	if atomic.LoadInt32(&w.any) == 0 {
		return taken
	}
	idle := b.Idle()
	alone := 0
	once := map[lease.RowID]bool{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range w.calls {
		if len(taken) == batch.MostOwnCalls {
			left = append(left, w.calls[i:]...)
			break
		}
		locked := b.Locked(c.Row)
		if locked {
			c.Retry()
		}
		waited := !c.Since.IsZero()
		if locked || waited && (!idle || alone == mostAlone) || c.Kind.Once && once[c.Row] {
			left = append(left, c)
			continue
		}
		if waited {
			alone++
		}
		if c.Kind.Once {
			once[c.Row] = true
		}
		c.waits = false
		taken = append(taken, c)
	}
	w.calls = left
	atomic.StoreInt32(&w.any, int32(len(left)))
	return taken
}

// Drop forgets the calls of a kind.
func (w *Waiting) Drop(k *Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []*Call
	for _, c := range w.calls {
		if c.Kind != k {
			left = append(left, c)
		}
	}
	w.calls = left
	atomic.StoreInt32(&w.any, int32(len(left)))
}

// SendAll sends what waits, before the store is closed. It tries for a time.
func (w *Waiting) SendAll(most time.Duration) {
	until := time.Now().Add(most)
	for w.size() > 0 && time.Now().Before(until) && w.database.Unavailable() == nil {
		before := w.size()
		w.database.Send()
		if w.size() >= before {
			time.Sleep(time.Millisecond)
		}
	}
}
