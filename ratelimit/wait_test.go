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

// startWait starts a goroutine that waits for a key and returns a channel for its error when the caller is
// in line.
func startWait(ctx context.Context, l *ratelimit.Limiter) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := l.Wait(ctx, "k", 1)
		done <- err
	}()
	synctest.Wait()
	return done
}

// Callers retry up to a tenth of RetryAfter later, and at most 50 ms.
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
				first, err := l.Take(context.Background(), key, 1)
				if err != nil || !first.Allowed {
					t.Fatalf("first hit: got %+v, %v, want it allowed", first, err)
				}
				start := time.Now()
				if _, err := l.Wait(context.Background(), key, 1); err != nil {
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

// A caller that cannot pass before its deadline fails immediately, first in line or not. A deadline that is
// just late enough is met.
func TestImpossibleWaitFailsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiterOfOnePer(t, time.Second)
		if _, err := l.Wait(context.Background(), "k", 1); err != nil {
			t.Fatal(err)
		}
		expectTooLong := func(what string, ctx context.Context, cost int64, want time.Duration) {
			t.Helper()
			start := time.Now()
			d, err := l.Wait(ctx, "k", cost)
			if !errors.Is(err, ratelimit.ErrTooLong) || time.Since(start) != 0 || d.Allowed ||
				d.RetryAfter != want {
				t.Errorf("%s: got %+v, %v after %v; want ErrTooLong", what, d, err, time.Since(start))
			}
		}
		short, cancel := context.WithTimeout(context.Background(), time.Second-time.Microsecond)
		defer cancel()
		expectTooLong("a deadline a microsecond too near", short, 1, time.Second)
		expectTooLong("a cost above the quota", context.Background(), 2, ratelimit.Never)
		just, cancel := context.WithTimeout(context.Background(), time.Second+time.Microsecond)
		defer cancel()
		done := startWait(just, l)
		expectTooLong("in line, a deadline that is too near without the others", short, 1, time.Second)
		expectTooLong("in line, a cost above the quota", context.Background(), 2, ratelimit.Never)
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
		if d, err := l.Wait(context.Background(), "k", 1); err != nil || d.Remaining != 2 {
			t.Fatalf("first hit: got %+v, %v, want 2 left", d, err)
		}
		start := time.Now()
		var group sync.WaitGroup
		for i, cost := range []int64{3, 1} {
			group.Go(func() {
				_, err := l.Wait(context.Background(), "k", cost)
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

// Callers are served in order, each once its RetryAfter has passed, or a little later. A caller that gives up
// delays no other, wherever it is in line.
func TestCallersAreServedInOrder(t *testing.T) {
	for _, canceled := range [][]int{nil, {0, 1, 5, 11}} {
		synctest.Test(t, func(t *testing.T) { checkLine(t, canceled) })
	}
}

// checkLine lets twelve callers wait, of which some give up after half a second.
func checkLine(t *testing.T, canceled []int) {
	l := newLimiterOfOnePer(t, time.Second)
	take := func(key string) {
		t.Helper()
		start := time.Now()
		d, err := l.Wait(context.Background(), key, 1)
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
		ctx, cancels[i] = context.WithCancelCause(context.Background())
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
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(enough)
	if _, err := l.Wait(ended, "k", 1); err == nil {
		t.Error("a caller with an ended context: no error, want one")
	}
}

// Every caller in line gets the error of the store.
func TestWaitFailsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := newMemoryLimiter(t, ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour})
		if _, err := l.Wait(context.Background(), "k", 1); err != nil {
			t.Fatal(err)
		}
		var waits []<-chan error
		for range 3 {
			waits = append(waits, startWait(context.Background(), l))
		}
		store.Close()
		waits = append(waits, startWait(context.Background(), l))
		for i, done := range waits {
			if err := <-done; !errors.Is(err, ratelimit.ErrClosed) {
				t.Errorf("caller %d: error %v, want ErrClosed", i, err)
			}
		}
	})
}

// A refund does not wait behind the callers in line. The first of them passes when it retries.
func TestRefundDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newMemoryLimiter(
			t, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Minute})
		if _, err := l.Wait(context.Background(), "k", 3); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		done := startWait(context.Background(), l)
		d, err := l.Wait(context.Background(), "k", -2)
		took := time.Since(start)
		if err != nil || !d.Allowed || d.Remaining != 2 || took != 0 {
			t.Errorf("refund: got %+v, %v after %v, want 2 left after 0s", d, err, took)
		}
		err = <-done
		if took := time.Since(start); err != nil || took < time.Minute {
			t.Errorf("the caller in line: error %v after %v, want none after a minute", err, took)
		}
		var field *ratelimit.FieldError
		if _, err := l.Wait(context.Background(), "k", 0); !errors.As(err, &field) || field.Field != "cost" {
			t.Errorf("a wait for cost 0: error %v, want a FieldError for cost", err)
		}
	})
}
