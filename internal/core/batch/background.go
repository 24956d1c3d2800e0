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
// slots, and charges after an outage. The next batch of any queue with this Background takes them along. If
// no batch comes, Background sends a batch without requests.
//
// A call that fails by itself, such as a call on a locked row, becomes isolated: it has a statement of its
// own in a batch without requests. It is lost after failing for retryTime, unless Call.Repeat is set.
type Background struct {
	Waiting int32 // the number of calls; atomic, so that a batch without such calls takes no lock
	options BackgroundOptions

	mu       sync.Mutex // guards the fields below
	calls    []*Call    // in the order of arrival
	isolated []*Call    // calls with Isolated set
	sending  bool       // a goroutine runs send
}

// BackgroundOptions configure a Background.
type BackgroundOptions struct {
	Closing context.Context         // ends when the store is closed
	Health  *health.Health          // tracks the server
	Send    func()                  // decides a batch without requests
	Report  func(lost int, _ error) // reports how many calls with an End were lost, and why
}

const (
	// maxPerBatch bounds the background calls of a batch with requests: more would delay the requests.
	maxPerBatch = 500

	maxWaiting  = 20000 // bounds the calls of a Background; further ones are lost
	maxIsolated = 3     // bounds the isolated calls of a batch
	retryTime   = time.Minute

	// maxPause bounds the pause after a batch without requests that has taken no calls.
	maxPause = 200 * time.Millisecond
)

// ErrTooManyCalls is the error of a call that is lost because too many calls wait.
var ErrTooManyCalls = errors.New("ratelimit: too many calls wait in the background")

// NewBackground returns a Background without calls.
func NewBackground(o BackgroundOptions) *Background { return &Background{options: o} }

// Add adds a call. If no other batch takes the call within wait, a batch without requests does. The call's
// End may run before Add returns.
func Add(b *Background, c *Call, wait time.Duration) {
	if atomic.LoadInt32(&b.Waiting) < maxWaiting {
		add(b, c, wait)
	} else if c.End != nil {
		c.End(0, ErrTooManyCalls)
	}
}

// add adds a call, even if too many wait.
func add(b *Background, c *Call, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Isolated {
		b.isolated = append(b.isolated, c)
	} else {
		b.calls = append(b.calls, c)
	}
	atomic.StoreInt32(&b.Waiting, int32(len(b.calls)+len(b.isolated)))
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
			before := atomic.LoadInt32(&b.Waiting)
			if before > 0 && o.Health.Unavailable() == nil {
				o.Send()
			}
			b.mu.Lock()
			b.sending = len(b.calls)+len(b.isolated) > 0 && o.Closing.Err() == nil
			sending := b.sending
			b.mu.Unlock()
			if !sending {
				return
			}
			if wait = 2*wait + time.Millisecond; wait > maxPause {
				wait = maxPause
			}
			if atomic.LoadInt32(&b.Waiting) < before {
				wait = 0
			}
		}
	})
	if err != nil {
		o.Report(0, err)
	}
}

// Collect removes and returns the calls that a batch takes along. idle is set for a batch without requests,
// which also takes isolated calls. all is set for requests that refund or reset rows, because they must come
// after all waiting refunds. Unless all is set, Collect takes at most maxPerBatch calls that are not
// isolated, and on each row only calls of one window.
func Collect(b *Background, idle, all bool) []*Call {
	var calls, left []*Call
	b.mu.Lock()
	defer b.mu.Unlock()
	windows := map[lease.RowID]int64{}
	for i, c := range b.calls {
		if len(calls) == maxPerBatch && !all {
			left = append(left, b.calls[i:]...)
			break
		}
		id := lease.RowOf(c.Hits[0].Limit, c.Hits[0].Key)
		if other := windows[id]; other != 0 && other != c.Window && !all {
			left = append(left, c)
			continue
		}
		windows[id] = c.Window
		calls = append(calls, c)
	}
	b.calls = left
	if idle {
		n := len(b.isolated)
		if n > maxIsolated {
			n = maxIsolated
		}
		calls = append(calls, b.isolated[:n]...)
		b.isolated = b.isolated[n:]
	}
	atomic.StoreInt32(&b.Waiting, int32(len(b.calls)+len(b.isolated)))
	return calls
}

// DropRefunds drops the refunds of leases, because a restored server may lack the charges that they refund.
// The refunds are the calls with a Claim and without an End.
func DropRefunds(b *Background) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = withoutRefunds(b.calls)
	b.isolated = withoutRefunds(b.isolated)
	atomic.StoreInt32(&b.Waiting, int32(len(b.calls)+len(b.isolated)))
}

// withoutRefunds returns the calls that DropRefunds keeps.
func withoutRefunds(calls []*Call) []*Call {
	var left []*Call
	for _, c := range calls {
		if c.Claim == 0 || c.End != nil {
			left = append(left, c)
		}
	}
	return left
}

// endBackground ends calls, or adds them again to be retried. err is the error of their batch, or nil. If err
// is set, the calls may or may not have had an effect. A call with an Err of its own had no effect.
func endBackground(b *Background, calls []*Call, err error) {
	now := time.Now()
	lost := 0
	var reason error
	for _, c := range calls {
		failure := err
		again := c.Repeat
		if c.Err != nil {
			failure = c.Err
			c.Err = nil
			if !c.Isolated {
				c.Isolated = true
				c.failedAt = now
			}
			again = again || now.Sub(c.failedAt) < retryTime
		}
		if failure != nil && again {
			add(b, c, maxPause)
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

// Flush sends the waiting calls. It stops after timeout, or when the database is unavailable.
func Flush(b *Background, timeout time.Duration) {
	until := time.Now().Add(timeout)
	for atomic.LoadInt32(&b.Waiting) > 0 && time.Now().Before(until) &&
		b.options.Health.Unavailable() == nil {
		before := atomic.LoadInt32(&b.Waiting)
		b.options.Send()
		if atomic.LoadInt32(&b.Waiting) >= before {
			time.Sleep(time.Millisecond)
		}
	}
}
