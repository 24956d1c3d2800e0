package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// newMemoryLimiter returns a limiter on a store in memory.
func newMemoryLimiter(t *testing.T, limit ratelimit.Limit) (*ratelimit.Limiter, *memory.Store) {
	t.Helper()
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.NewLimiter(store, limit)
	if err != nil {
		t.Fatal(err)
	}
	return limiter, store
}

// newLimiterOfOnePer returns a limiter of one event per interval, without a burst.
func newLimiterOfOnePer(t *testing.T, interval time.Duration) *ratelimit.Limiter {
	limiter, _ := newMemoryLimiter(
		t, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.GCRA, Events: 2, Window: 2 * interval, Burst: 1})
	return limiter
}

// startWait starts a caller that waits for a key. It returns when the caller is in line, with a channel for
// the caller's error.
func startWait(ctx context.Context, l *ratelimit.Limiter) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := l.Wait(ctx, "k", 1)
		done <- err
	}()
	synctest.Wait()
	return done
}

// Each caller waits for RetryAfter and then for a random delay of up to a tenth of RetryAfter, at most 50 ms,
// so that callers do not all retry at once.
func TestRetriesAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ interval, maxDelay time.Duration }{
			{interval: 100 * time.Millisecond, maxDelay: 10 * time.Millisecond},
			{interval: time.Hour, maxDelay: 50 * time.Millisecond},
		} {
			l := newLimiterOfOnePer(t, test.interval)
			late := map[time.Duration]bool{}
			for i := range 50 {
				key := fmt.Sprint(i)
				first, err := l.Take(t.Context(), key, 1)
				if err != nil || !first.Allowed {
					t.Fatalf("first hit: got %+v, %v, want it allowed", first, err)
				}
				start := time.Now()
				if _, err := l.Wait(t.Context(), key, 1); err != nil {
					t.Fatal(err)
				}
				took := time.Since(start) - test.interval
				late[took] = true
				if took < 0 || took > test.maxDelay {
					t.Fatalf("waited %v more than %v, want up to %v", took, test.interval, test.maxDelay)
				}
			}
			if len(late) < 10 {
				t.Errorf("50 callers retried after %d different delays, want at least 10", len(late))
			}
		}
	})
}

// A caller that cannot pass before its deadline fails immediately, with and without other callers in line. A
// caller that can pass a microsecond before its deadline does pass.
func TestImpossibleWaitFailsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiterOfOnePer(t, time.Second)
		if _, err := l.Wait(t.Context(), "k", 1); err != nil {
			t.Fatal(err)
		}
		expectTooLong := func(what string, ctx context.Context, cost int64, want time.Duration) {
			t.Helper()
			start := time.Now()
			d, err := l.Wait(ctx, "k", cost)
			if !errors.Is(err, ratelimit.ErrTooLong) || d.Allowed || d.RetryAfter != want {
				t.Errorf("%s: got %+v, %v; want ErrTooLong and RetryAfter %v", what, d, err, want)
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("%s: took %v, want 0s", what, took)
			}
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second-time.Microsecond)
		defer cancel()
		expectTooLong("a deadline a microsecond too near", short, 1, time.Second)
		expectTooLong("a cost above the quota", t.Context(), 2, ratelimit.Never)
		just, cancel := context.WithTimeout(t.Context(), time.Second+time.Microsecond)
		defer cancel()
		done := startWait(just, l)
		expectTooLong("in line, a deadline a microsecond too near", short, 1, time.Second)
		expectTooLong("in line, a cost above the quota", t.Context(), 2, ratelimit.Never)
		if err := <-done; err != nil {
			t.Errorf("a deadline a microsecond later than needed: error %v, want none", err)
		}
	})
}

// A hit that would pass immediately waits behind a hit with a higher cost.
func TestLowCostDoesNotOvertakeHighCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newMemoryLimiter(
			t, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Minute})
		if d, err := l.Wait(t.Context(), "k", 1); err != nil || d.Remaining != 2 {
			t.Fatalf("first hit: got %+v, %v, want 2 left", d, err)
		}
		start := time.Now()
		var group sync.WaitGroup
		for i, cost := range []int64{3, 1} {
			group.Go(func() {
				_, err := l.Wait(t.Context(), "k", cost)
				minutes := int(time.Since(start) / time.Minute)
				if err != nil || minutes != i+1 {
					t.Errorf("cost %d: %v after %d minutes, want no error after %d", cost, err, minutes,
						i+1)
				}
			})
			synctest.Wait()
		}
		group.Wait()
	})
}

// Callers are served in order, each when its RetryAfter has passed, or a little later. A caller that gives up
// delays no other caller, at whatever place in line it was.
func TestCallersAreServedInOrder(t *testing.T) {
	for _, canceled := range [][]int{nil, {0, 1, 5, 11}} {
		synctest.Test(t, func(t *testing.T) { checkLine(t, canceled) })
	}
}

// checkLine lets twelve callers wait in line. Those with a number in canceled give up after half a second.
func checkLine(t *testing.T, canceled []int) {
	l := newLimiterOfOnePer(t, time.Second)
	take := func(key string) {
		t.Helper()
		start := time.Now()
		d, err := l.Wait(t.Context(), key, 1)
		if took := time.Since(start); err != nil || !d.Allowed || took > 0 {
			t.Errorf("first in line: got %+v, %v after %v, want it allowed after 0s", d, err, took)
		}
	}
	take("k")
	start := time.Now()
	var cancels [12]context.CancelCauseFunc
	var served [12]time.Duration
	var errs [12]error
	var group sync.WaitGroup
	for i := range cancels {
		var ctx context.Context
		ctx, cancels[i] = context.WithCancelCause(t.Context())
		group.Go(func() {
			_, errs[i] = l.Wait(ctx, "k", 1)
			served[i] = time.Since(start)
		})
		synctest.Wait() // the caller is in line
	}
	take("other") // another key has its own line
	enough := errors.New("enough")
	time.Sleep(500 * time.Millisecond)
	for _, i := range canceled {
		cancels[i](enough)
	}
	group.Wait()
	turn := time.Duration(0)
	for i, err := range errs {
		if slices.Contains(canceled, i) {
			if !errors.Is(err, enough) || served[i] != 500*time.Millisecond {
				t.Errorf("caller %d: error %v after %v, want %v after 500ms", i, err, served[i], enough)
			}
			continue
		}
		turn++
		minWait, maxWait := turn*time.Second, turn*(time.Second+50*time.Millisecond)
		if err != nil || served[i] < minWait || served[i] > maxWait {
			t.Errorf("caller %d: error %v after %v, want none after %v to %v", i, err, served[i], minWait,
				maxWait)
		}
	}
	time.Sleep(time.Second)
	take("k") // the line is empty
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if _, err := l.Wait(ended, "k", 1); err == nil {
		t.Error("a caller with an ended context: no error, want one")
	}
}

// If the store fails, each caller in line gets the error of the store.
func TestWaitFailsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := newMemoryLimiter(t, ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour})
		if _, err := l.Wait(t.Context(), "k", 1); err != nil {
			t.Fatal(err)
		}
		var waits []<-chan error
		for range 3 {
			waits = append(waits, startWait(t.Context(), l))
		}
		store.Close()
		waits = append(waits, startWait(t.Context(), l))
		for i, done := range waits {
			if err := <-done; !errors.Is(err, ratelimit.ErrClosed) {
				t.Errorf("caller %d: error %v, want ErrClosed", i, err)
			}
		}
	})
}

// A refund does not wait in line. The first caller in line nevertheless passes only when it retries. A wait
// for a cost of 0 is an error.
func TestRefundDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newMemoryLimiter(
			t, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Minute})
		if _, err := l.Wait(t.Context(), "k", 3); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		done := startWait(t.Context(), l)
		d, err := l.Wait(t.Context(), "k", -2)
		if got := fmt.Sprint(d.Allowed, d.Remaining, err, time.Since(start)); got != "true 2 <nil> 0s" {
			t.Errorf("refund: got allowed, remaining, error and time %s, want true 2 <nil> 0s", got)
		}
		err = <-done
		if took := time.Since(start); err != nil || took < time.Minute {
			t.Errorf("the caller in line: error %v after %v, want none after a minute", err, took)
		}
		if _, err := l.Wait(t.Context(), "k", 0); conformance.FieldOf(err) != "cost" {
			t.Errorf("a wait for cost 0: error %v, want a FieldError for cost", err)
		}
	})
}
