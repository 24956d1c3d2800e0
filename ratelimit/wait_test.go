package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// inMemory returns a limiter on a store in memory.
func inMemory(t *testing.T, limit ratelimit.Limit) (*ratelimit.Limiter, *memory.Store) {
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

// oneEach returns a limiter of one event an interval, without a burst.
func oneEach(t *testing.T, interval time.Duration) *ratelimit.Limiter {
	limiter, _ := inMemory(
		t, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.GCRA, Events: 2, Window: 2 * interval, Burst: 1})
	return limiter
}

// TestCallersAreServedInOrder: each caller of Wait is served once its RetryAfter has
// passed, or a little later.
func TestCallersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := oneEach(t, time.Second)
		begun := time.Now()
		var mu sync.Mutex
		var order []int
		var group sync.WaitGroup
		for i := range 20 {
			group.Go(func() {
				d, err := l.Wait(context.Background(), "k", 1)
				if err != nil || !d.Allowed {
					t.Errorf("caller %d: %+v, %v", i, d, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				least, most := time.Duration(i)*time.Second,
					time.Duration(i)*(time.Second+50*time.Millisecond)
				if took := time.Since(begun); took < least || took > most {
					t.Errorf("caller %d waited %v, want from %v to %v", i, took, least, most)
				}
			})
			synctest.Wait() // the caller is in line
		}
		// Another key has its own line.
		if _, err := l.Wait(context.Background(), "other", 1); err != nil || time.Since(begun) > 0 {
			t.Errorf("the only caller for another key: %v after %v", err, time.Since(begun))
		}
		group.Wait()
		for i, caller := range order {
			if i != caller {
				t.Fatalf("served in the order %v", order)
			}
		}
	})
}

// TestCallersAskAgainAtDifferentTimes: up to a tenth of RetryAfter later, and no more
// than 50 ms.
func TestCallersAskAgainAtDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ interval, most time.Duration }{{100 * time.Millisecond,
			10 * time.Millisecond}, {time.Hour, 50 * time.Millisecond}} {
			l := oneEach(t, test.interval)
			late := map[time.Duration]bool{}
			for i := range 50 {
				key := fmt.Sprint(i)
				first, err := l.Take(context.Background(), key, 1)
				if err != nil || !first.Allowed {
					t.Fatal(first, err)
				}
				begun := time.Now()
				if _, err := l.Wait(context.Background(), key, 1); err != nil {
					t.Fatal(err)
				}
				took := time.Since(begun) - test.interval
				late[took] = true
				if took < 0 || took > test.most {
					t.Fatalf("waited %v more than %v, want up to %v", took, test.interval, test.most)
				}
			}
			if len(late) < 10 {
				t.Errorf("50 callers were late by only %d different times", len(late))
			}
		}
	})
}

// TestCallersThatCannotPassInTimeFailAtOnce, first in line or not. A deadline that is just
// late enough is met.
func TestCallersThatCannotPassInTimeFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := oneEach(t, time.Second)
		if _, err := l.Wait(context.Background(), "k", 1); err != nil {
			t.Fatal(err)
		}
		atOnce := func(what string, ctx context.Context, cost int64, want time.Duration) {
			t.Helper()
			begun := time.Now()
			d, err := l.Wait(ctx, "k", cost)
			if !errors.Is(err, ratelimit.ErrTooLong) || time.Since(begun) != 0 || d.Allowed ||
				d.RetryAfter != want {
				t.Errorf("%s: %+v, %v after %v", what, d, err, time.Since(begun))
			}
		}
		short, cancel := context.WithTimeout(context.Background(), time.Second-time.Microsecond)
		defer cancel()
		atOnce("a deadline a microsecond too near", short, 1, time.Second)
		atOnce("a cost above the quota", context.Background(), 2, ratelimit.Never)
		just, cancel := context.WithTimeout(context.Background(), time.Second+time.Microsecond)
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := l.Wait(just, "k", 1)
			done <- err
		}()
		synctest.Wait()
		atOnce("in line, a deadline that is too near without the others", short, 1, time.Second)
		atOnce("in line, a cost above the quota", context.Background(), 2, ratelimit.Never)
		if err := <-done; err != nil {
			t.Errorf("a deadline a microsecond later than needed: %v", err)
		}
	})
}

// TestLowCostDoesNotOvertakeHighCost: a hit that would pass at once waits behind a hit
// that needs more.
func TestLowCostDoesNotOvertakeHighCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := inMemory(
			t, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Minute})
		if d, err := l.Wait(context.Background(), "k", 1); err != nil || d.Remaining != 2 {
			t.Fatal(d, err)
		}
		begun := time.Now()
		var group sync.WaitGroup
		for i, cost := range []int64{3, 1} {
			group.Go(func() {
				_, err := l.Wait(context.Background(), "k", cost)
				minutes := time.Since(begun) / time.Minute
				if err != nil || int(minutes) != i+1 {
					t.Errorf("the caller of cost %d waited %v: %v", cost, time.Since(begun), err)
				}
			})
			synctest.Wait()
		}
		group.Wait()
	})
}

// TestCallerThatGivesUpDelaysNoOther, wherever in the line it is.
func TestCallerThatGivesUpDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := oneEach(t, time.Second)
		if _, err := l.Wait(context.Background(), "k", 1); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		const callers = 12
		var cancels [callers]context.CancelCauseFunc
		var served [callers]time.Duration
		var errs [callers]error
		var group sync.WaitGroup
		for i := range callers {
			var ctx context.Context
			ctx, cancels[i] = context.WithCancelCause(context.Background())
			group.Go(func() {
				_, errs[i] = l.Wait(ctx, "k", 1)
				served[i] = time.Since(begun)
			})
			synctest.Wait()
		}
		enough := errors.New("enough")
		time.Sleep(500 * time.Millisecond)
		for _, i := range []int{0, 1, 5, callers - 1} { // the first in line among them
			cancels[i](enough)
		}
		synctest.Wait()
		for _, i := range []int{0, 1, 5, callers - 1} {
			if !errors.Is(errs[i], enough) || served[i] != 500*time.Millisecond {
				t.Errorf("caller %d: %v after %v", i, errs[i], served[i])
			}
		}
		group.Wait()
		turn := time.Duration(0)
		for i := range callers {
			if errs[i] != nil {
				continue
			}
			turn++
			if served[i] < turn*time.Second || served[i] > turn*(time.Second+50*time.Millisecond) {
				t.Errorf("caller %d, served as number %d, waited %v", i, turn, served[i])
			}
		}
		if turn != callers-4 {
			t.Errorf("%d were served: %v", turn, errs)
		}
		// The line is empty, so the next caller is first.
		time.Sleep(time.Second)
		if d, err := l.Wait(context.Background(), "k", 1); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		ended, cancel := context.WithCancelCause(context.Background())
		cancel(enough)
		if _, err := l.Wait(ended, "k", 1); err == nil {
			t.Error("a caller with an ended context was served")
		}
	})
}

// TestWaitFailsWithTheStore: every caller in line gets the store's error.
func TestWaitFailsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := inMemory(t, ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour})
		if _, err := l.Wait(context.Background(), "k", 1); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error)
		for range 3 {
			go func() {
				_, err := l.Wait(context.Background(), "k", 1)
				errs <- err
			}()
			synctest.Wait()
		}
		store.Close()
		if _, err := l.Wait(context.Background(), "k", 1); !errors.Is(err, ratelimit.ErrClosed) {
			t.Error(err) // at once, although others are in line
		}
		for range 3 {
			if err := <-errs; !errors.Is(err, ratelimit.ErrClosed) {
				t.Error(err)
			}
		}
		if _, err := l.Wait(context.Background(), "k", 1); !errors.Is(err, ratelimit.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestRefundDoesNotWait behind the callers in line, and lets the first of them pass when it
// asks again.
func TestRefundDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := inMemory(
			t, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Minute})
		if _, err := l.Wait(context.Background(), "k", 3); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		done := make(chan error)
		go func() {
			_, err := l.Wait(context.Background(), "k", 1)
			done <- err
		}()
		synctest.Wait()
		if d, err := l.Wait(context.Background(), "k", -2); err != nil || !d.Allowed || d.Remaining != 2 ||
			time.Since(begun) != 0 {
			t.Errorf("%+v, %v after %v", d, err, time.Since(begun))
		}
		if err := <-done; err != nil || time.Since(begun) < time.Minute {
			t.Errorf("the caller in line: %v after %v", err, time.Since(begun))
		}
		var field *ratelimit.FieldError
		if _, err := l.Wait(context.Background(), "k", 0); !errors.As(err, &field) || field.Field != "cost" {
			t.Errorf("a wait for cost 0: %v", err)
		}
	})
}
