package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

func TestNewLimiterRefuses(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	good := ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	for _, test := range []struct {
		store ratelimit.Store
		limit ratelimit.Limit
		field string
	}{
		{store: nil, limit: good, field: "store"},
		{store: store, limit: ratelimit.Limit{}, field: "prefix"},
	} {
		l, err := ratelimit.NewLimiter(test.store, test.limit)
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != test.field || l != nil {
			t.Errorf("%+v: error %v, want a FieldError for %s", test.limit, err, test.field)
		}
	}
}

// A timeout of 0 or less is an error that names the field.
func TestLimiterTimeout(t *testing.T) {
	l, _ := newMemoryLimiter(t, ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour})
	if l.Timeout != ratelimit.DefaultTimeout {
		t.Errorf("the timeout is %v, want %v", l.Timeout, ratelimit.DefaultTimeout)
	}
	for _, timeout := range []time.Duration{0, -1} {
		l.Timeout = timeout
		_, taken := l.Take(context.Background(), "k", 1)
		_, waited := l.Wait(context.Background(), "k", 1)
		for _, err := range []error{taken, waited, l.Reset(context.Background(), "k")} {
			var field *ratelimit.FieldError
			if !errors.As(err, &field) || field.Field != "Timeout" {
				t.Errorf("timeout %v: error %v, want a FieldError for Timeout", timeout, err)
			}
		}
	}
}
