// Package health tracks whether a Postgres server answers, and thereby distinguishes an overload (the server
// answers others) from an outage. All users of a server share one Health.
//
// A server is in one of three states. While it is down, requests fail immediately. While it is suspected,
// they wait for one timeout instead of four. In both states, a probe in the background pings the server until
// it answers.
//
//	state      call answered   call timed out   connection failed   probe answered   probe failed
//	answering  answering       suspected        down                answering        down
//	suspected  answering       suspected        down                answering        down
//	down       down            down             down                answering        down
//
// A call that is answered does not end an outage. Only the probe does, because it also reads which server
// answers, and leases of a server that was replaced must end before a call uses them.
//
// A call timed out if its error wraps pgdb.ErrNoAnswer, and its connection failed if it wraps
// pgdb.ErrConnectionLost. Other errors do not change the state: calls used all connections, or the caller's
// context ended. A failure does not change the state if the server has answered another call meanwhile: then
// only the connection has failed, or the call waited for a lock. A timeout shorter than minTimeout does not
// change the state either. The time that this process loses, in a queue or without the processor, does not
// count, because drivers count a timeout from the time at which statements are sent.
package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// minTimeout is the shortest timeout that counts. A shorter one may pass although the server is well.
const minTimeout = 50 * time.Millisecond

const (
	// minProbeInterval and maxProbeInterval bound the time between two probes. A random part keeps proxies
	// from probing at the same moment.
	minProbeInterval = 25 * time.Millisecond
	maxProbeInterval = 500 * time.Millisecond

	// minProbeTime and maxProbeTime bound the wait for the answer to a probe.
	minProbeTime = 250 * time.Millisecond
	maxProbeTime = 2 * time.Second
)

// The states, in the order of severity.
const (
	answering = iota
	suspected
	down
)

// Health tracks the state of a server. New makes one.
type Health struct {
	// answeredAt is the time of the last answer, in nanoseconds since created. It is atomic, and the first
	// field, so that it is aligned on a processor of 32 bits.
	answeredAt int64

	ping    func(ctx context.Context, timeout time.Duration) error
	closing context.Context
	random  func() float64
	created time.Time

	// Atomic, so that a call need not take the mutex.
	state    int32
	awaiting int32 // the number of calls of Await

	mu      sync.Mutex // guards the fields below, and changes of state
	outage  error      // the error of Unavailable; nil unless the state is down
	probing bool       // a goroutine runs probe
}

// New returns the Health of a server in the state answering. ping returns nil if the server answers in time,
// and otherwise an error of pgdb.DB.Run. ping must not panic, and is not called after closing has ended.
// random returns numbers in [0, 1).
func New(closing context.Context, random func() float64,
	ping func(ctx context.Context, timeout time.Duration) error) *Health {
	return &Health{ping: ping, closing: closing, random: random, created: time.Now()}
}

// MaxTimeouts is the number of timeouts in the deadline of a request.
const MaxTimeouts = 4

// Patience returns how long a request may wait after its arrival: MaxTimeouts timeouts while the server
// answers others, and one while the server is silent.
func (h *Health) Patience(timeout time.Duration) time.Duration {
	if atomic.LoadInt32(&h.state) == answering {
		return MaxTimeouts * timeout
	}
	return timeout
}

// errDeadline is the cause of a context that ended at the deadline of a request.
var errDeadline = fmt.Errorf("the deadline of a request: %w", ratelimit.ErrOverloaded)

// WithDeadline returns ctx with the deadline of a request that arrived at arrived. Ended recognizes it.
func WithDeadline(ctx context.Context, arrived time.Time, timeout time.Duration) (
	context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, arrived.Add(MaxTimeouts*timeout), errDeadline)
}

// Ended returns the error of a request after its context ended.
func (h *Health) Ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, errDeadline) {
		return h.NoDecision(cause, true)
	}
	return cause
}

// Silent reports whether the server is suspected or down.
func (h *Health) Silent() bool { return atomic.LoadInt32(&h.state) != answering }

// Unavailable returns ratelimit.ErrUnavailable with its cause while the server is down, and nil otherwise.
func (h *Health) Unavailable() error {
	if atomic.LoadInt32(&h.state) != down {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.outage
}

// NoDecision returns the error of a request after its call failed with err. pastDeadline means that the
// request has no time left of MaxTimeouts timeouts. The error is then ratelimit.ErrOverloaded, or
// ratelimit.ErrTimeout if the server is Silent. pastDeadline must be false if Patience gave the request only
// one timeout, even if the server answers again. The error is also ErrTimeout if the call timed out, or ended
// at an earlier deadline.
func (h *Health) NoDecision(err error, pastDeadline bool) error {
	switch {
	case pastDeadline && !h.Silent():
		return ratelimit.ErrOverloaded
	case pastDeadline || errors.Is(err, pgdb.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded):
		return ratelimit.ErrTimeout
	}
	return err
}

// Answered records that the server answered a call.
func (h *Health) Answered() {
	atomic.StoreInt64(&h.answeredAt, int64(time.Since(h.created)))
	if atomic.LoadInt32(&h.state) == suspected {
		h.mu.Lock()
		if h.state == suspected {
			h.set(answering, nil)
		}
		h.mu.Unlock()
	}
}

// Failed records that a call with a timeout, sent at sent, failed with err, an error of pgdb.DB.Run. It
// returns the error of the call, which wraps ratelimit.ErrUnavailable if err shows that the server is down.
func (h *Health) Failed(sent time.Time, timeout time.Duration, err error) error {
	late, failed := classify(err)
	if !late && !failed || late && timeout < minTimeout || h.answersOthers(sent, late, timeout) {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing.Err() != nil {
		return err
	}
	if !late {
		if !errors.Is(err, ratelimit.ErrUnavailable) {
			err = unavailable(err)
		}
		h.set(down, err)
	} else if !h.Silent() {
		h.set(suspected, nil)
	}
	h.startProbe(timeout)
	return err
}

// Check starts a probe after a call with a timeout that may have waited for something else than the server,
// such as a synchronous standby. The server is not suspected.
func (h *Health) Check(timeout time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing.Err() == nil {
		h.startProbe(timeout)
	}
}

// startProbe starts a probe, unless one runs. The caller holds the mutex.
func (h *Health) startProbe(timeout time.Duration) {
	if !h.probing {
		h.probing = true
		go h.probe(timeout)
	}
}

// unavailable returns an error that wraps ratelimit.ErrUnavailable and err. Its text does not say that the
// server does not answer if the server refuses the configuration.
func unavailable(err error) error {
	if errors.Is(err, pgdb.ErrConfiguration) {
		// In Traefik, errors.Is would not see the methods of an error of our own.
		return fmt.Errorf("ratelimit: %w%.0w", err, ratelimit.ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, err)
}

// classify reports whether a call with an error of pgdb.DB.Run timed out (late), or its connection failed.
func classify(err error) (late, failed bool) {
	return errors.Is(err, pgdb.ErrNoAnswer), errors.Is(err, pgdb.ErrConnectionLost)
}

// answersOthers reports whether the server has answered another call since sent. A late call may have been
// sent on the answered call's connection, right after the answer. So for a late call, only an answer in the
// last four fifths of its timeout counts: otherwise a server that hangs would seem to answer. A stall of this
// process may therefore make the server suspected without a reason, until its next answer.
func (h *Health) answersOthers(sent time.Time, late bool, timeout time.Duration) bool {
	answered := h.created.Add(time.Duration(atomic.LoadInt64(&h.answeredAt)))
	return answered.After(sent) && (!late || time.Since(answered) < timeout-timeout/5)
}

// set changes the state. The caller holds the mutex.
func (h *Health) set(state int32, cause error) {
	h.outage = cause
	atomic.StoreInt32(&h.state, state)
}

// Answers pings a server, as a call with a timeout, and reports whether it answers in time.
func (h *Health) Answers(timeout time.Duration) bool {
	timeout = probeTime(timeout)
	sent := time.Now()
	err := h.ping(h.closing, timeout)
	if err != nil {
		_ = h.Failed(sent, timeout, err)
	}
	return err == nil && h.Unavailable() == nil
}

// probeTime returns how long a probe waits for its answer, if calls have a timeout.
func probeTime(timeout time.Duration) time.Duration {
	if timeout < minProbeTime {
		return minProbeTime
	}
	if timeout > maxProbeTime {
		return maxProbeTime
	}
	return timeout
}

// probe pings the server until it answers, or until a server that is not down has answered another call.
func (h *Health) probe(timeout time.Duration) {
	for interval := minProbeInterval; ; {
		sent := time.Now()
		err := h.ping(h.closing, probeTime(timeout))
		late, failed := classify(err)
		h.mu.Lock()
		if err == nil || h.state != down && h.answersOthers(sent, late, timeout) ||
			h.closing.Err() != nil {
			h.probing = false
			h.set(answering, nil)
			h.mu.Unlock()
			return
		}
		if late || failed {
			h.set(down, unavailable(err))
		}
		h.mu.Unlock()
		Sleep(h.closing, interval/2+time.Duration(h.random()*float64(interval)))
		if interval *= 2; interval > maxProbeInterval {
			interval = maxProbeInterval
		}
	}
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}
