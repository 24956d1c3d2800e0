package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// TestNewLimiterRefuses settings that are out of their ranges.
func TestNewLimiterRefuses(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	good := ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	for _, test := range []struct {
		store   ratelimit.Store
		limit   ratelimit.Limit
		timeout time.Duration
		field   string
	}{{nil, good, 0, "store"}, {store, ratelimit.Limit{}, 0, "prefix"}, {store, good, -1, "timeout"}} {
		l, err := ratelimit.NewLimiter(test.store, test.limit, test.timeout)
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != test.field || l != nil {
			t.Errorf("%+v, %v: %v", test.limit, test.timeout, err)
		}
	}
}

// TestLimiter takes, peeks, refunds and resets.
func TestLimiter(t *testing.T) {
	want := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Hour}
	l, _ := inMemory(t, want)
	if l.Limit() != want {
		t.Error(l.Limit())
	}
	ctx := context.Background()
	for i, step := range []struct {
		ask       func() (ratelimit.Decision, error)
		allowed   bool
		remaining int64
	}{
		{func() (ratelimit.Decision, error) { return l.Peek(ctx, "k", 1) }, true, 3},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "k", 3) }, true, 0},
		{func() (ratelimit.Decision, error) { return l.Peek(ctx, "k", 1) }, false, 0},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "k", 1) }, false, 0},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "k", -2) }, true, 2},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "other", 1) }, true, 2},
		{func() (ratelimit.Decision, error) { return l.Peek(ctx, "k", 2) }, true, 2},
		{func() (ratelimit.Decision, error) { return l.Peek(ctx, "k", 3) }, false, 2},
		{func() (ratelimit.Decision, error) {
			if err := l.Reset(ctx, "k"); err != nil {
				t.Error(err)
			}
			return l.Peek(ctx, "k", 1)
		}, true, 3},
	} {
		d, err := step.ask()
		if err != nil || d.Allowed != step.allowed || d.Remaining != step.remaining || d.Limit != 3 || d.Source != ratelimit.FromMemory {
			t.Errorf("step %d: %+v, %v", i, d, err)
		}
	}
}
