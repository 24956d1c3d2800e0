package ratelimit

import (
	"context"
	"sync"
	"time"
)

// Limiter enforces one Limit on the keys of a Store. It is safe for concurrent use. A program
// creates one for each limit and keeps it. Take charges a key immediately, Wait waits until the
// charge fits, and Peek charges nothing.
type Limiter struct {
	// Timeout bounds the time that the database takes for a decision; see Store.Take. NewLimiter sets it to
	// DefaultTimeout. It must be above 0, and must not change after the first use.
	Timeout time.Duration

	store Store
	limit Limit

	mu sync.Mutex
	// lines holds the callers of Wait for each key in the order of arrival; guarded by mu. A caller's channel
	// is closed when the caller is first in line.
	lines map[string][]chan struct{}
}

// DefaultTimeout is the Timeout of a new Limiter.
const DefaultTimeout = 250 * time.Millisecond

const needsHold = "each hit on such a limit requires a Hold of its own, see Hit.Hold"

// NewLimiter returns a Limiter for the limit. The error is a *FieldError: for a nil store, an
// invalid limit, or a limit that is InFlight or Reserves.
func NewLimiter(store Store, limit Limit) (*Limiter, error) {
	if store == nil {
		return nil, &FieldError{"store", "", "a Store"}
	}
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	switch {
	case limit.Algorithm == InFlight:
		return nil, &FieldError{"algorithm", limit.Algorithm.String(), "another one: " + needsHold}
	case limit.Reserves:
		return nil, &FieldError{"reserves", "true", "left out: " + needsHold}
	}
	return &Limiter{Timeout: DefaultTimeout, store: store, limit: limit, lines: map[string][]chan struct{}{}},
		nil
}

// Limit returns the enforced limit.
func (l *Limiter) Limit() Limit { return l.limit }

// Take charges cost to the key if it fits, and reports in Decision.Allowed whether it did. A
// negative cost is a refund, which never raises the quota above its full amount. After an error
// (see Store.Take) the Decision has no meaning, and the caller chooses whether the request passes.
func (l *Limiter) Take(ctx context.Context, key string, cost int64) (Decision, error) {
	return l.takeHit(ctx, Hit{Limit: &l.limit, Key: key, Cost: cost})
}

// Peek returns the decision that Take would make for a cost of 1 or more. It charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string, cost int64) (Decision, error) {
	return l.takeHit(ctx, Hit{Limit: &l.limit, Key: key, Cost: cost, Peek: true})
}

func (l *Limiter) takeHit(ctx context.Context, h Hit) (Decision, error) {
	decisions := make([]Decision, 1)
	if err := l.checkTimeout(); err != nil {
		return decisions[0], err
	}
	err := l.store.Take(ctx, l.Timeout, []Hit{h}, decisions)
	return decisions[0], err
}

// Reset restores the full quota of the key.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := l.checkTimeout(); err != nil {
		return err
	}
	return l.store.Reset(ctx, l.Timeout, []Hit{{Limit: &l.limit, Key: key}})
}

// checkTimeout returns a *FieldError unless Timeout is above 0.
func (l *Limiter) checkTimeout() error {
	if l.Timeout <= 0 {
		return &FieldError{"Timeout", l.Timeout.String(), "a duration above 0"}
	}
	return nil
}
