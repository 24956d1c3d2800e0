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
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var errTest, errUnsent = errors.New("test"), errors.New("unsent")

// fakeSender sends the jobs of a Backlog. fail gets the number of attempts so far, and returns two errors:
// that of the job alone, and that of its whole batch.
type fakeSender struct {
	backlog *batch.Backlog
	fail    func(tries int) (jobErr, batchErr error)

	tries   int   // jobs that were sent
	alone   int   // jobs that were sent with their own statement, counted in tries too
	granted int64 // the sum of the units that the ends of jobs received
	ended   []error
	lost    int // jobs, as reported
}

func newFakeSender(ctx context.Context, fail func(tries int) (jobErr, batchErr error)) *fakeSender {
	c := &fakeSender{fail: fail}
	c.backlog = batch.NewBacklog(batch.BacklogOptions{
		Closing: ctx, Health: health.New(ctx, nil, nil), Send: c.send,
		Report: func(lost int, _ error) { c.lost += lost },
	})
	return c
}

func (c *fakeSender) send() {
	var together error
	jobs := batch.Collect(c.backlog, true, false)
	for _, job := range jobs {
		job.Granted = job.Hit.Cost
		job.Err, together = c.fail(c.tries)
		job.Unsent = errors.Is(job.Err, errUnsent)
		if c.tries++; job.Isolated {
			c.alone++
		}
	}
	batch.End(c.backlog, jobs, together)
}

// job returns a job of a key and a window.
func (c *fakeSender) job(key string, window int64) *batch.Job {
	return &batch.Job{
		Window: window, Hit: ratelimit.Hit{Limit: &ratelimit.Limit{}, Key: key, Cost: 2},
		End: func(granted int64, err error) { c.granted += granted; c.ended = append(c.ended, err) },
	}
}

// A job is sent again until it takes effect, unless it may have taken effect already.
func TestJobIsRetriedUntilItTakesEffect(t *testing.T) {
	failOnce := func(jobErr, batchErr error) func(int) (error, error) {
		return func(tries int) (error, error) {
			if tries > 0 {
				return nil, nil
			}
			return jobErr, batchErr
		}
	}
	for name, test := range map[string]struct {
		repeat       bool
		fail         func(int) (error, error)
		tries, alone int
		lost         bool
	}{
		"answered":            {fail: failOnce(nil, nil), tries: 1},
		"the answer is lost":  {fail: failOnce(nil, errTest), tries: 1, lost: true},
		"failed by itself":    {fail: failOnce(errTest, nil), tries: 2, alone: 1},
		"not sent":            {fail: failOnce(errUnsent, nil), tries: 2},
		"repeated":            {repeat: true, fail: failOnce(nil, errTest), tries: 2},
		"fails for a minute":  {fail: failTimes(1e9), tries: 307, alone: 306, lost: true},
		"repeated for longer": {repeat: true, fail: failTimes(1000), tries: 1001, alone: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeSender(t.Context(), test.fail)
				job := c.job("k", 1)
				job.Repeat = test.repeat
				batch.Add(c.backlog, job, 0)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if len(c.ended) != 1 || c.granted != 2 {
					t.Fatalf("ended with %v, %d granted; want one end, 2 granted", c.ended, c.granted)
				}
				if failed := c.ended[0] != nil; failed != test.lost || (c.lost == 1) != test.lost {
					t.Errorf("ended with %v, %d lost; want lost %v", c.ended, c.lost, test.lost)
				}
				if c.tries != test.tries || c.alone != test.alone {
					t.Errorf("sent %d times, %d alone; want %d, %d", c.tries, c.alone, test.tries, test.alone)
				}
			})
		})
	}
}

// failTimes returns a function that fails the first n attempts of a job.
func failTimes(n int) func(tries int) (jobErr, batchErr error) {
	return func(tries int) (error, error) {
		if tries < n {
			return errTest, nil
		}
		return nil, nil
	}
}

// If too many jobs wait, each further job ends immediately with ErrTooManyJobs. The waiting jobs are sent
// later.
func TestTooManyJobsAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeSender(t.Context(), failTimes(0))
		for i := range 20_001 {
			batch.Add(c.backlog, c.job(fmt.Sprint(i), 1), time.Minute)
		}
		if len(c.ended) != 1 || !errors.Is(c.ended[0], batch.ErrTooManyJobs) {
			t.Errorf("ended with %v, want ErrTooManyJobs once", c.ended)
		}
		batch.Flush(c.backlog, time.Second)
		if len(c.ended) != 20_001 || c.granted != 40_000 {
			t.Errorf("after Flush, %d jobs ended with %d units, want 20001 and 40000", len(c.ended),
				c.granted)
		}
		synctest.Wait()
	})
}

// DropRefunds drops the refunds of leases, because a server that has taken over may lack their charges.
// Settlements stay.
func TestRefundsOfLeasesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeSender(t.Context(), failTimes(0))
		for _, alone := range []bool{false, true} {
			settlement, refund := c.job("k", 1), c.job("k", 1)
			settlement.Claim, refund.Claim, refund.End = 1, 1, nil
			settlement.Isolated, refund.Isolated = alone, alone
			batch.Add(c.backlog, settlement, time.Minute)
			batch.Add(c.backlog, refund, time.Minute)
		}
		batch.DropRefunds(c.backlog)
		check.Equal(t, "jobs that wait", len(batch.Collect(c.backlog, true, false)), 2)
	})
}

// A batch has only jobs of one window for each row. If a request refunds, its batch first has all waiting
// jobs of its row.
func TestBatchHasOneWindowPerRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeSender(t.Context(), failTimes(0))
		add := func() {
			for _, window := range []int64{1, 1, 2} {
				batch.Add(c.backlog, c.job("k", window), time.Minute)
			}
		}
		add()
		check.Equal(t, "jobs of a batch", len(batch.Collect(c.backlog, false, false)), 2)
		add()
		check.Equal(t, "jobs of a batch with a refund", len(batch.Collect(c.backlog, false, true)), 4)
	})
}
