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
)

// newLimiter returns a limiter in memory: one event an interval, no burst.
func newLimiter(t *testing.T, interval time.Duration) *ratelimit.Limiter {
	t.Helper()
	store := ratelimit.NewMemory(0, nil)
	l, err := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.GCRA, Events: 2, Window: 2 * interval, Burst: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := l.Waiting(); n != 0 {
			t.Errorf("%d lines of waiters are left", n)
		}
	})
	return l
}

// TestWaitInOrder: waiters are served in the order in which they came, each as
// soon as its RetryAfter is over, or a little later. The clock is synctest's.
func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, time.Second)
		begun := time.Now()
		var mu sync.Mutex
		var order []int
		var group sync.WaitGroup
		for i := range 20 {
			group.Add(1)
			go func() {
				defer group.Done()
				d, err := l.Wait(context.Background(), "k", 1)
				if err != nil || !d.Allowed {
					t.Errorf("waiter %d: %+v, %v", i, d, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				least, most := time.Duration(i)*time.Second, time.Duration(i)*(time.Second+50*time.Millisecond)
				if took := time.Since(begun); took < least || took > most {
					t.Errorf("waiter %d waited %v, want from %v to %v", i, took, least, most)
				}
			}()
			synctest.Wait() // it stands in line
		}
		// Another key has a line of its own.
		if _, err := l.Wait(context.Background(), "other", 1); err != nil || time.Since(begun) > 0 {
			t.Errorf("the only one for another key: %v after %v", err, time.Since(begun))
		}
		group.Wait()
		for i, who := range order {
			if i != who {
				t.Fatalf("served in the order %v", order)
			}
		}
	})
}

// TestWaitJitter: who has waited comes up to a tenth later, but not more than
// 50 ms, and not all at the same time.
func TestWaitJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ interval, most time.Duration }{{100 * time.Millisecond, 10 * time.Millisecond}, {time.Hour, 50 * time.Millisecond}} {
			l := newLimiter(t, test.interval)
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
				t.Errorf("50 waiters were late by only %d different times", len(late))
			}
		}
	})
}

// TestWaitTooLong: who cannot be served in time is told at once, first in line or
// not; who can just be is served.
func TestWaitTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, time.Second)
		if _, err := l.Wait(context.Background(), "k", 1); err != nil {
			t.Fatal(err)
		}
		atOnce := func(what string, ctx context.Context, cost int64, want time.Duration) {
			t.Helper()
			begun := time.Now()
			d, err := l.Wait(ctx, "k", cost)
			if !errors.Is(err, ratelimit.ErrTooLong) || time.Since(begun) != 0 || d.Allowed || d.RetryAfter != want {
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

// TestWaitIsFair: who would pass at once does not overtake who waits for more.
func TestWaitIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := ratelimit.NewLimiter(ratelimit.NewMemory(0, nil), ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Minute}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Wait(context.Background(), "k", 1); err != nil || d.Remaining != 2 {
			t.Fatal(d, err)
		}
		begun := time.Now()
		var group sync.WaitGroup
		for i, cost := range []int64{3, 1} {
			group.Add(1)
			go func() {
				defer group.Done()
				_, err := l.Wait(context.Background(), "k", cost)
				minutes := time.Since(begun) / time.Minute
				if err != nil || int(minutes) != i+1 {
					t.Errorf("the one who wants %d waited %v: %v", cost, time.Since(begun), err)
				}
			}()
			synctest.Wait()
		}
		group.Wait()
	})
}

// TestWaitEnds: whoever stops waiting, wherever he stands, keeps nobody else from
// being served, and leaves nothing behind.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, time.Second)
		if _, err := l.Wait(context.Background(), "k", 1); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		const waiters = 12
		var cancels [waiters]context.CancelCauseFunc
		var served [waiters]time.Duration
		var errs [waiters]error
		var group sync.WaitGroup
		for i := range waiters {
			var ctx context.Context
			ctx, cancels[i] = context.WithCancelCause(context.Background())
			group.Add(1)
			go func() {
				defer group.Done()
				_, errs[i] = l.Wait(ctx, "k", 1)
				served[i] = time.Since(begun)
			}()
			synctest.Wait()
		}
		enough := errors.New("enough")
		time.Sleep(500 * time.Millisecond)
		for _, i := range []int{0, 1, 5, waiters - 1} { // the first in line among them
			cancels[i](enough)
		}
		synctest.Wait()
		for _, i := range []int{0, 1, 5, waiters - 1} {
			if !errors.Is(errs[i], enough) || served[i] != 500*time.Millisecond {
				t.Errorf("waiter %d: %v after %v", i, errs[i], served[i])
			}
		}
		group.Wait()
		turn := time.Duration(0)
		for i := range waiters {
			if errs[i] != nil {
				continue
			}
			turn++
			if served[i] < turn*time.Second || served[i] > turn*(time.Second+50*time.Millisecond) {
				t.Errorf("waiter %d, the %d. to be served, waited %v", i, turn, served[i])
			}
		}
		if turn != waiters-4 {
			t.Errorf("%d were served: %v", turn, errs)
		}
		// Nobody is in line, so whoever comes is first.
		time.Sleep(time.Second)
		if d, err := l.Wait(context.Background(), "k", 1); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		ended, cancel := context.WithCancelCause(context.Background())
		cancel(enough)
		if _, err := l.Wait(ended, "k", 1); err == nil {
			t.Error("served a caller who is gone")
		}
	})
}

// TestWaitFails with the store's error, for those in line too.
func TestWaitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := ratelimit.NewMemory(0, nil)
		l, err := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}, 0)
		if err != nil {
			t.Fatal(err)
		}
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
		if l.Waiting() != 0 {
			t.Error("a line is left")
		}
	})
}

// TestLimiter takes, looks, gives back and forgets, and refuses bad settings.
func TestLimiter(t *testing.T) {
	store := ratelimit.NewMemory(0, nil)
	for _, test := range []struct {
		limit   ratelimit.Limit
		timeout time.Duration
		field   string
	}{{ratelimit.Limit{}, 0, "prefix"}, {ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}, -1, "timeout"}} {
		_, err := ratelimit.NewLimiter(store, test.limit, test.timeout)
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != test.field {
			t.Errorf("%+v, %v: %v", test.limit, test.timeout, err)
		}
	}
	want := ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 3, Window: time.Hour}
	l, err := ratelimit.NewLimiter(store, want, time.Second)
	if err != nil || l.Limit() != want {
		t.Fatal(l.Limit(), err)
	}
	ctx := context.Background()
	for i, step := range []struct {
		ask       func() (ratelimit.Decision, error)
		allowed   bool
		remaining int64
	}{
		{func() (ratelimit.Decision, error) { return l.Peek(ctx, "k") }, true, 3},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "k", 3) }, true, 0},
		{func() (ratelimit.Decision, error) { return l.Peek(ctx, "k") }, false, 0},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "k", 1) }, false, 0},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "k", -2) }, true, 2},
		{func() (ratelimit.Decision, error) { return l.Take(ctx, "other", 1) }, true, 2},
		{func() (ratelimit.Decision, error) {
			if err := l.Reset(ctx, "k"); err != nil {
				t.Error(err)
			}
			return l.Peek(ctx, "k")
		}, true, 3},
	} {
		d, err := step.ask()
		if err != nil || d.Allowed != step.allowed || d.Remaining != step.remaining || d.Limit != 3 || d.Source != ratelimit.FromMemory {
			t.Errorf("step %d: %+v, %v", i, d, err)
		}
	}
}
