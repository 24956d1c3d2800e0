package batch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// Background holds the calls that nobody waits for: settlements, refunds and charges of leases, releases of
// slots, and charges after an outage. They go with the next batch of any queue that has this Background. If
// none comes, a batch without requests takes them.
//
// A call that has failed by itself, as one on a locked row, goes alone: in a statement of its own, in a batch
// without requests. It is lost if it has failed for longestTry, unless it is to be repeated.
type Background struct {
	options BackgroundOptions
	waits   int32 // the number of calls; atomic, so that the usual batch takes no lock

	mu      sync.Mutex // guards all that follows
	calls   []*Call    // in the order of arrival
	alone   []*Call    // those that go alone
	sending bool       // a goroutine sends batches without requests
}

// BackgroundOptions configure a Background.
type BackgroundOptions struct {
	Closing context.Context         // ends when the store is closed
	Health  *health.Health          // of the server
	Send    func()                  // decides a batch without requests
	Report  func(lost int, _ error) // is called when calls with an End are lost
}

const (
	// MostTogether bounds the calls of a Background in a batch: more would delay its requests.
	MostTogether = 500

	mostWaiting = 20000 // the bound on calls; further ones are lost
	mostAlone   = 3     // the bound on calls in a batch that go alone
	longestTry  = time.Minute

	// longestPause is the longest time between two batches without requests that take no calls.
	longestPause = 200 * time.Millisecond
)

// ErrCrowded is the error of a call that is lost because too many wait.
var ErrCrowded = errors.New("ratelimit: too many calls wait in the background")

// NewBackground returns a Background without calls.
func NewBackground(o BackgroundOptions) *Background { return &Background{options: o} }

// Add adds a call. If no other batch takes it within wait, a batch without requests does. The call's End may
// be called before Add returns.
func Add(b *Background, c *Call, wait time.Duration) {
	if atomic.LoadInt32(&b.waits) < mostWaiting {
		add(b, c, wait)
	} else if c.End != nil {
		c.End(0, ErrCrowded)
	}
}

// add adds a call, however many wait.
func add(b *Background, c *Call, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Alone {
		b.alone = append(b.alone, c)
	} else {
		b.calls = append(b.calls, c)
	}
	atomic.StoreInt32(&b.waits, int32(len(b.calls)+len(b.alone)))
	if !b.sending {
		b.sending = true
		go send(b, wait)
	}
}

// send sends batches without requests until no calls wait.
func send(b *Background, wait time.Duration) {
	o := b.options
	err := PanicError(func() {
		for {
			health.Sleep(o.Closing, wait)
			before := atomic.LoadInt32(&b.waits)
			if before > 0 && o.Health.Unavailable() == nil {
				o.Send()
			}
			b.mu.Lock()
			b.sending = len(b.calls)+len(b.alone) > 0 && o.Closing.Err() == nil
			sending := b.sending
			b.mu.Unlock()
			if !sending {
				return
			}
			if wait = 2*wait + time.Millisecond; wait > longestPause {
				wait = longestPause
			}
			if atomic.LoadInt32(&b.waits) < before {
				wait = 0
			}
		}
	})
	if err != nil {
		o.Report(0, err)
	}
}

// Collect removes the calls that go with a batch, and returns them. idle is for a batch without requests.
// all is for a batch with refunds or resets of requests, which come after all refunds that wait. Otherwise
// calls on one row are of one window.
func Collect(b *Background, idle, all bool) []*Call {
	var taken, left []*Call
	if atomic.LoadInt32(&b.waits) == 0 {
		return taken
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	windows := map[lease.RowID]int64{}
	for i, c := range b.calls {
		if len(taken) == MostTogether && !all {
			left = append(left, b.calls[i:]...)
			break
		}
		id := lease.RowOf(c.Hits[0].Limit, c.Hits[0].Key)
		if other := windows[id]; other != 0 && other != c.Window && !all {
			left = append(left, c)
			continue
		}
		windows[id] = c.Window
		taken = append(taken, c)
	}
	b.calls = left
	if idle {
		n := len(b.alone)
		if n > mostAlone {
			n = mostAlone
		}
		taken = append(taken, b.alone[:n]...)
		b.alone = b.alone[n:]
	}
	atomic.StoreInt32(&b.waits, int32(len(b.calls)+len(b.alone)))
	return taken
}

// Forget drops the calls with a Claim and without an End, which are refunds of leases: a restored
// server may lack their charges.
func Forget(b *Background) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = withoutRefunds(b.calls)
	b.alone = withoutRefunds(b.alone)
	atomic.StoreInt32(&b.waits, int32(len(b.calls)+len(b.alone)))
}

// withoutRefunds returns the calls that Forget leaves.
func withoutRefunds(calls []*Call) []*Call {
	var left []*Call
	for _, c := range calls {
		if c.Claim == 0 || c.End != nil {
			left = append(left, c)
		}
	}
	return left
}

// endUnattended ends calls, or adds them again. err is set if their batch has no results: then their effects
// are not known. A call with an Err of its own had no effect.
func endUnattended(b *Background, calls []*Call, err error) {
	now := time.Now()
	lost := 0
	var reason error
	for _, c := range calls {
		failure := err
		again := c.Repeat
		if c.Err != nil {
			failure = c.Err
			c.Err = nil
			if !c.Alone {
				c.Alone = true
				c.failed = now
			}
			again = again || now.Sub(c.failed) < longestTry
		}
		if failure != nil && again {
			add(b, c, longestPause)
			continue
		}
		if c.End == nil {
			continue
		}
		c.End(c.Granted, failure)
		if failure != nil {
			lost++
			reason = failure
		}
	}
	if lost > 0 {
		b.options.Report(lost, reason)
	}
}

// Flush sends what waits, for as long as the database makes decisions, and at most for a time.
func Flush(b *Background, most time.Duration) {
	until := time.Now().Add(most)
	for atomic.LoadInt32(&b.waits) > 0 && time.Now().Before(until) && b.options.Health.Unavailable() == nil {
		before := atomic.LoadInt32(&b.waits)
		b.options.Send()
		if atomic.LoadInt32(&b.waits) >= before {
			time.Sleep(time.Millisecond)
		}
	}
}
