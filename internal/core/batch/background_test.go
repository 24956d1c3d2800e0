package batch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var errTest = errors.New("test")

// courier sends the calls of a Background. fail gets the number of earlier attempts of a call, and returns
// the error of the call itself and that of its batch.
type courier struct {
	background *batch.Background
	queue      *batch.Queue
	fail       func(tries int) (own, together error)

	tries   int   // calls that were sent
	alone   int   // of these, the ones with a statement of their own
	granted int64 // by the ends of calls
	ended   []error
	lost    int // as reported
}

func newCourier(ctx context.Context, fail func(tries int) (own, together error)) *courier {
	c := &courier{fail: fail}
	c.background = batch.NewBackground(batch.BackgroundOptions{
		Closing: ctx, Health: health.New(ctx, nil, nil), Send: c.send,
		Report: func(lost int, _ error) { c.lost += lost },
	})
	c.queue = batch.NewQueue(batch.Options{Background: c.background})
	return c
}

func (c *courier) send() {
	var together error
	calls := batch.Collect(c.background, true, false)
	for _, call := range calls {
		call.Granted = call.Hits[0].Cost
		call.Err, together = c.fail(c.tries)
		if c.tries++; call.Isolated {
			c.alone++
		}
	}
	batch.Finish(c.queue, calls, together)
}

// call returns a call of a key and a window.
func (c *courier) call(key string, window int64) *batch.Call {
	return &batch.Call{
		Order: batch.Before, Window: window,
		Hits: []ratelimit.Hit{{Limit: &ratelimit.Limit{}, Key: key, Cost: 2}},
		End:  func(granted int64, err error) { c.granted += granted; c.ended = append(c.ended, err) },
	}
}

// TestACallIsSentAgainUntilItHadItsEffect also checks that a call is not retried if it may have had an
// effect.
func TestACallIsSentAgainUntilItHadItsEffect(t *testing.T) {
	failsOnce := func(own, together error) func(int) (error, error) {
		return func(tries int) (error, error) {
			if tries > 0 {
				return nil, nil
			}
			return own, together
		}
	}
	for name, test := range map[string]struct {
		repeat       bool
		fail         func(int) (error, error)
		tries, alone int
		lost         bool
	}{
		"answered":            {false, failsOnce(nil, nil), 1, 0, false},
		"the answer is lost":  {false, failsOnce(nil, errTest), 1, 0, true},
		"failed by itself":    {false, failsOnce(errTest, nil), 2, 1, false},
		"repeated":            {true, failsOnce(nil, errTest), 2, 0, false},
		"fails for a minute":  {false, func(int) (error, error) { return errTest, nil }, 307, 306, true},
		"repeated for longer": {true, failsOften, 1001, 1000, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCourier(t.Context(), test.fail)
				call := c.call("k", 1)
				call.Repeat = test.repeat
				batch.Add(c.background, call, 0)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if len(c.ended) != 1 || (c.ended[0] != nil) != test.lost || (c.lost == 1) != test.lost ||
					c.granted != 2 {
					t.Errorf("ended with %v, %d granted, %d lost", c.ended, c.granted, c.lost)
				}
				if c.tries != test.tries || c.alone != test.alone {
					t.Errorf("sent %d times, %d alone; want %d, %d", c.tries, c.alone, test.tries, test.alone)
				}
			})
		})
	}
}

func failsOften(tries int) (error, error) {
	if tries < 1000 {
		return errTest, nil
	}
	return nil, nil
}

// TestTooManyCallsAreLost: their ends get an error.
func TestTooManyCallsAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourier(t.Context(), func(int) (error, error) { return nil, nil })
		for i := range 20_001 {
			batch.Add(c.background, c.call(fmt.Sprint(i), 1), time.Minute)
		}
		if len(c.ended) != 1 || !errors.Is(c.ended[0], batch.ErrTooManyCalls) {
			t.Errorf("ended: %v", c.ended)
		}
		batch.Flush(c.background, time.Second)
		if len(c.ended) != 20_001 || c.granted != 40_000 {
			t.Errorf("%d calls ended after Flush, with %d granted", len(c.ended), c.granted)
		}
		synctest.Wait()
	})
}

// TestRefundsOfLeasesAreDropped drops refunds, because a server that has taken over may lack the charges.
func TestRefundsOfLeasesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourier(t.Context(), func(int) (error, error) { return nil, nil })
		for _, alone := range []bool{false, true} {
			settlement, refund := c.call("k", 1), c.call("k", 1)
			settlement.Claim, refund.Claim, refund.End = 1, 1, nil
			settlement.Isolated, refund.Isolated = alone, alone
			batch.Add(c.background, settlement, time.Minute)
			batch.Add(c.background, refund, time.Minute)
		}
		batch.DropRefunds(c.background)
		if n := len(batch.Collect(c.background, true, false)); n != 2 {
			t.Errorf("%d calls wait, want two settlements", n)
		}
	})
}

// TestABatchHasOneWindowOfARow, unless a request refunds: then all waiting refunds come first.
func TestABatchHasOneWindowOfARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourier(t.Context(), func(int) (error, error) { return nil, nil })
		add := func() {
			for _, window := range []int64{1, 1, 2} {
				batch.Add(c.background, c.call("k", window), time.Minute)
			}
		}
		add()
		if n := len(batch.Collect(c.background, false, false)); n != 2 {
			t.Errorf("a batch has %d calls, want those of the first window", n)
		}
		add()
		if n := len(batch.Collect(c.background, false, true)); n != 4 {
			t.Errorf("a batch with a refund has %d calls, want all", n)
		}
	})
}
