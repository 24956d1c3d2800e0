package ratelimit

import (
	"context"
	"sync"
	"time"
)

// Limiter enforces one Limit on the keys of a Store. It is safe for concurrent use.
// A program makes one for each limit and keeps it.
type Limiter struct {
	// Timeout is how long the database has for a decision; see Store. NewLimiter sets it to
	// DefaultTimeout. It must be above 0, and must not change once the limiter is used.
	Timeout time.Duration

	store Store
	limit Limit

	mu sync.Mutex
	// lines are the callers of Wait by key, in the order of arrival; guarded by mu. Each has a
	// channel, which is closed when the caller is first in line.
	lines map[string][]chan struct{}
}

// DefaultTimeout is the Timeout of a new Limiter.
const DefaultTimeout = 250 * time.Millisecond

// NewLimiter returns a limiter. The error is a *FieldError, for a nil store or for a
// limit that does not Validate.
func NewLimiter(store Store, limit Limit) (*Limiter, error) {
	if store == nil {
		return nil, &FieldError{"store", "", "a Store"}
	}
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	if limit.Algorithm == InFlight {
		return nil, &FieldError{"algorithm", limit.Algorithm.String(), "another one: a Limiter holds no Slot, see Hit.Slot"}
	}
	return &Limiter{Timeout: DefaultTimeout, store: store, limit: limit, lines: map[string][]chan struct{}{}}, nil
}

// Limit returns what is enforced.
func (l *Limiter) Limit() Limit { return l.limit }

// Take charges cost to the key if it fits, and says whether it did. A negative cost
// is a refund, which never raises the quota above its full amount. An error means
// that there is no decision (see Store.Take); the caller then chooses whether the
// request passes.
func (l *Limiter) Take(ctx context.Context, key string, cost int64) (Decision, error) {
	return l.take(ctx, Hit{Limit: &l.limit, Key: key, Cost: cost})
}

// Peek says what is left for the key, and whether a hit of this cost, 1 or more,
// would pass. It charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string, cost int64) (Decision, error) {
	return l.take(ctx, Hit{Limit: &l.limit, Key: key, Cost: cost, Peek: true})
}

func (l *Limiter) take(ctx context.Context, h Hit) (Decision, error) {
	decisions := make([]Decision, 1)
	if err := l.checkTimeout(); err != nil {
		return decisions[0], err
	}
	err := l.store.Take(ctx, l.Timeout, []Hit{h}, decisions)
	return decisions[0], err
}

// Reset gives the key its full quota back.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := l.checkTimeout(); err != nil {
		return err
	}
	return l.store.Reset(ctx, l.Timeout, []Hit{{Limit: &l.limit, Key: key}})
}

// checkTimeout returns a *FieldError for a Timeout out of its range.
func (l *Limiter) checkTimeout() error {
	if l.Timeout <= 0 {
		return &FieldError{"Timeout", l.Timeout.String(), "a duration above 0"}
	}
	return nil
}
