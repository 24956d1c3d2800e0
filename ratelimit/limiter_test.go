package ratelimit_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// NewLimiter refuses a missing store, an invalid limit, and one whose hits require a Hold, with an error that
// names the field.
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
		{store: store, field: "algorithm",
			limit: ratelimit.Limit{Prefix: "p", Events: 1, Algorithm: ratelimit.InFlight}},
		{store: store, field: "reserves",
			limit: ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour, Reserves: true}},
	} {
		l, err := ratelimit.NewLimiter(test.store, test.limit)
		if conformance.FieldOf(err) != test.field || l != nil {
			t.Errorf("%+v: error %v, want a FieldError for %s", test.limit, err, test.field)
		}
	}
}

// The timeout is DefaultTimeout at first. With a timeout of 0 or less, each method returns an error that
// names Timeout.
func TestLimiterRequiresPositiveTimeout(t *testing.T) {
	l, _ := newMemoryLimiter(t, ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour})
	if l.Timeout != ratelimit.DefaultTimeout {
		t.Errorf("the timeout is %v, want %v", l.Timeout, ratelimit.DefaultTimeout)
	}
	for _, timeout := range []time.Duration{0, -1} {
		l.Timeout = timeout
		_, taken := l.Take(t.Context(), "k", 1)
		_, waited := l.Wait(t.Context(), "k", 1)
		for _, err := range []error{taken, waited, l.Reset(t.Context(), "k")} {
			if conformance.FieldOf(err) != "Timeout" {
				t.Errorf("timeout %v: error %v, want a FieldError for Timeout", timeout, err)
			}
		}
	}
}
