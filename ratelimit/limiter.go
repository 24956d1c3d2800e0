package ratelimit

import (
	"context"
	"errors"
	"math/rand"
	"sync"
	"time"
)

// Limiter enforces one Limit on the keys of a Store. It is safe for concurrent
// use; make one for each limit and keep it.
type Limiter struct {
	store   Store
	limit   Limit
	timeout time.Duration

	mu      sync.Mutex
	waiting map[string]*waiters
}

// DefaultTimeout is how long a Limiter waits for a decision.
const DefaultTimeout = 250 * time.Millisecond

// NewLimiter returns a limiter. Its errors are *FieldError, for a limit that does
// not Validate. timeout is for each decision; 0 means DefaultTimeout.
func NewLimiter(store Store, limit Limit, timeout time.Duration) (*Limiter, error) {
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	if timeout < 0 {
		return nil, &FieldError{"timeout", timeout.String(), "a duration above 0"}
	}
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return &Limiter{store: store, limit: limit, timeout: timeout, waiting: map[string]*waiters{}}, nil
}

// Limit returns what is enforced.
func (l *Limiter) Limit() Limit { return l.limit }

// Take charges cost to the key if it fits, and says whether it did. A cost of 0
// charges nothing, one below 0 gives back, never beyond the full quota. An error
// means that nothing is known (see Store.Take); whether to let the hit pass then
// is yours to decide.
func (l *Limiter) Take(ctx context.Context, key string, cost int64) (Decision, error) {
	return l.take(ctx, Hit{Limit: &l.limit, Key: key, Cost: cost})
}

// Peek says what is left for the key, and whether a hit of cost 1 would pass,
// charging nothing.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.take(ctx, Hit{Limit: &l.limit, Key: key, Cost: 1, Peek: true})
}

func (l *Limiter) take(ctx context.Context, h Hit) (Decision, error) {
	decisions := make([]Decision, 1)
	err := l.store.Take(ctx, l.timeout, []Hit{h}, decisions)
	return decisions[0], err
}

// Reset gives the key its full quota back.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	return l.store.Reset(ctx, l.timeout, []Hit{{Limit: &l.limit, Key: key}})
}

// ErrTooLong is returned by Wait where the hit cannot pass before ctx ends: its
// deadline is nearer than RetryAfter, or the cost is more than the full quota.
var ErrTooLong = errors.New("ratelimit: the hit cannot pass in time")

// waiters are the callers of Wait for one key, in the order of arrival.
type waiters struct {
	line []chan struct{} // closed when its turn has come
}

// Wait returns once the key was charged cost, or with the error that ended the
// wait: ErrTooLong, ctx's, or the store's. Callers for one key are served in the
// order in which they came: only the first in line asks the store, again each
// time that its RetryAfter has passed and a little more, so that waiters in many
// processes do not all come at once.
func (l *Limiter) Wait(ctx context.Context, key string, cost int64) (Decision, error) {
	turn := l.queue(key)
	defer l.leave(key, turn)
	select {
	case <-turn:
	default:
		// Others are ahead, so it takes at least as long as it would without.
		d, err := l.take(ctx, Hit{Limit: &l.limit, Key: key, Cost: cost, Peek: true})
		if err != nil {
			return d, err
		}
		if tooLong(ctx, d) {
			return d, ErrTooLong
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return d, context.Cause(ctx)
		}
	}
	for {
		d, err := l.Take(ctx, key, cost)
		if err != nil || d.Allowed {
			return d, err
		}
		if tooLong(ctx, d) {
			return d, ErrTooLong
		}
		timer := time.NewTimer(jittered(ctx, d.RetryAfter))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return d, context.Cause(ctx)
		}
	}
}

// tooLong reports whether a refused hit cannot pass before ctx's deadline.
func tooLong(ctx context.Context, d Decision) bool {
	if d.Allowed {
		return false
	}
	deadline, ok := ctx.Deadline()
	return d.RetryAfter == Never || ok && time.Until(deadline) < d.RetryAfter
}

// jittered adds up to a tenth, but no more than 50 ms, nor half of the time that
// ctx leaves.
func jittered(ctx context.Context, d time.Duration) time.Duration {
	most := d / 10
	if most > 50*time.Millisecond {
		most = 50 * time.Millisecond
	}
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline) - d; left/2 < most {
			most = left / 2
		}
	}
	if most < 0 {
		most = 0
	}
	return d + time.Duration(rand.Int63n(int64(most)+1))
}

// queue joins the line for a key. The first in line has its turn at once.
func (l *Limiter) queue(key string) chan struct{} {
	turn := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiting[key]
	if w == nil {
		w = &waiters{}
		l.waiting[key] = w
	}
	w.line = append(w.line, turn)
	if len(w.line) == 1 {
		close(turn)
	}
	return turn
}

// leave takes a caller out of the line; if it was first, the next has its turn.
func (l *Limiter) leave(key string, turn chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiting[key]
	for i := range w.line {
		if w.line[i] == turn {
			w.line = append(w.line[:i:i], w.line[i+1:]...)
			if i == 0 && len(w.line) > 0 {
				close(w.line[0])
			}
			break
		}
	}
	if len(w.line) == 0 {
		delete(l.waiting, key)
	}
}
