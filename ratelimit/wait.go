package ratelimit

import (
	"context"
	"errors"
	"math/rand"
	"time"
)

// ErrTooLong is returned by Wait if the hit cannot pass before the deadline of ctx, or ever
// because it costs more than the full quota.
var ErrTooLong = errors.New("ratelimit: the hit cannot pass in time")

// Wait blocks until cost is charged to the key. It fails with ErrTooLong, the cause of ctx, or the
// store's error. A refund (a negative cost) does not wait. Callers for one key are served in the
// order of arrival, and only the first in line calls the store. It retries after RetryAfter plus a
// random delay of up to 50 ms, so that callers in many processes do not retry at the same moment.
func (l *Limiter) Wait(ctx context.Context, key string, cost int64) (Decision, error) {
	if cost < 1 {
		return l.Take(ctx, key, cost)
	}
	turn := l.joinLine(key)
	defer l.leaveLine(key, turn)
	select {
	case <-turn:
	default:
		// Fail early: callers ahead can only make the wait longer than RetryAfter.
		d, err := l.Peek(ctx, key, cost)
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

// tooLong reports whether d is a refusal and the hit cannot pass before ctx's deadline.
func tooLong(ctx context.Context, d Decision) bool {
	if d.Allowed {
		return false
	}
	deadline, ok := ctx.Deadline()
	return d.RetryAfter == Never || ok && time.Until(deadline) < d.RetryAfter
}

// jittered returns d plus a random delay. The delay is at most a tenth of d, at most 50 ms, and at
// most half of the time between d and ctx's deadline.
func jittered(ctx context.Context, d time.Duration) time.Duration {
	bound := d / 10
	if bound > 50*time.Millisecond {
		bound = 50 * time.Millisecond
	}
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline) - d; left/2 < bound {
			bound = left / 2
		}
	}
	if bound < 0 {
		bound = 0
	}
	return d + time.Duration(rand.Int63n(int64(bound)+1))
}

// joinLine appends a caller to the line for a key. The returned channel is closed when the
// caller is first in line, which may already be the case.
func (l *Limiter) joinLine(key string) chan struct{} {
	turn := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines[key] = append(l.lines[key], turn)
	if len(l.lines[key]) == 1 {
		close(turn)
	}
	return turn
}

// leaveLine removes a caller from the line for a key. If it was first, the next caller becomes
// first.
func (l *Limiter) leaveLine(key string, turn chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.lines[key]
	i := 0
	for line[i] != turn {
		i++
	}
	line = append(line[:i:i], line[i+1:]...)
	if len(line) == 0 {
		delete(l.lines, key)
		return
	}
	l.lines[key] = line
	if i == 0 {
		close(line[0])
	}
}
