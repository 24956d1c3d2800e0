package batch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Job is a change of one row for which nobody waits: a settlement, a refund or a charge of a lease, a release
// of slots, or a charge after an outage. The batch that collects a job owns it until End.
type Job struct {
	// Hit has a stored key, and the cost to charge. A cost below 0 is a refund. If Claim is set, the cost is
	// refunded or charged even if it does not fit.
	Hit     ratelimit.Hit
	Row     *lease.Cached // the remembered row of a charge for its lease, otherwise nil
	After   bool          // decide the job after the batch's requests of one hit, not before all requests
	Repeat  bool          // retry after any failure; otherwise only if the job certainly had no effect
	Partial bool          // charge as much of the cost as fits
	Claim   int64         // the charge to correct (see Definition.Adjust), or the first slot to release
	Window  int64         // the result of algorithm.WindowOf; jobs of one row and window may be added; 0: any

	Isolated bool // send the job in a statement of its own, because it failed by itself before
	failedAt time.Time

	// Err is the reason why the job had no effect. Unsent is set if its batch was not sent, which is no fault
	// of the job. Granted is the charged cost of a Partial job. End, unless it is nil, is called once: after
	// the decision, or with an error if the job is lost.
	Err     error
	Unsent  bool
	Granted int64
	End     func(granted int64, err error)
}

// Backlog holds the jobs that wait. The next batch takes them along. If no batch comes, Backlog sends a batch
// without requests.
//
// A job that fails by itself, such as a job on a locked row, becomes isolated: it has a statement of its own
// in a batch without requests. It is lost after failing for retryTime, unless Job.Repeat is set.
type Backlog struct {
	Waiting int32 // the number of jobs; atomic, so that a batch without jobs takes no lock
	options BacklogOptions

	mu       sync.Mutex // guards the fields below
	jobs     []*Job     // in the order of arrival
	isolated []*Job     // jobs with Isolated set
	sending  bool       // a goroutine runs send
	closed   bool       // no job is added
}

// BacklogOptions configure a Backlog.
type BacklogOptions struct {
	Closing context.Context         // ends when the store is closed
	Health  *health.Health          // tracks the server
	Send    func()                  // decides a batch without requests
	Report  func(lost int, _ error) // reports how many jobs with an End were lost, and why
}

const (
	// maxPerBatch bounds the jobs of a batch with requests: more would delay the requests.
	maxPerBatch = 500

	maxWaiting  = 20000 // bounds the jobs of a Backlog; further ones are lost
	maxIsolated = 3     // bounds the isolated jobs of a batch
	retryTime   = time.Minute

	// maxPause bounds the pause after a batch without requests that has taken no jobs.
	maxPause = 200 * time.Millisecond
)

// ErrTooManyJobs is the error of a job that is lost because too many jobs wait, or after Close.
var ErrTooManyJobs = errors.New("ratelimit: too many jobs wait in the background")

// NewBacklog returns a Backlog without jobs.
func NewBacklog(o BacklogOptions) *Backlog { return &Backlog{options: o} }

// Add adds a job. If no other batch takes the job within wait, a batch without requests does. The job's End
// may run before Add returns.
func Add(b *Backlog, j *Job, wait time.Duration) {
	if (atomic.LoadInt32(&b.Waiting) >= maxWaiting || !add(b, j, wait)) && j.End != nil {
		j.End(0, ErrTooManyJobs)
	}
}

// add adds a job, even if too many wait, and reports false after Close.
func add(b *Backlog, j *Job, wait time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if j.Isolated {
		b.isolated = append(b.isolated, j)
	} else {
		b.jobs = append(b.jobs, j)
	}
	b.count()
	if !b.sending {
		b.sending = true
		go send(b, wait)
	}
	return true
}

// count sets Waiting. The caller holds the mutex.
func (b *Backlog) count() { atomic.StoreInt32(&b.Waiting, int32(len(b.jobs)+len(b.isolated))) }

// send sends batches without requests until no jobs wait.
func send(b *Backlog, wait time.Duration) {
	o := b.options
	err := PanicError(func() {
		for {
			health.Sleep(o.Closing, wait)
			before := atomic.LoadInt32(&b.Waiting)
			if before > 0 && o.Health.Unavailable() == nil {
				o.Send()
			}
			b.mu.Lock()
			b.sending = atomic.LoadInt32(&b.Waiting) > 0 && o.Closing.Err() == nil
			sending := b.sending
			b.mu.Unlock()
			if !sending {
				return
			}
			if wait = 2*wait + time.Millisecond; wait > maxPause {
				wait = maxPause
			}
			if atomic.LoadInt32(&b.Waiting) < before {
				wait = 0
			}
		}
	})
	if err != nil {
		b.mu.Lock()
		b.sending = false // the next job starts another send
		b.mu.Unlock()
		o.Report(0, err)
	}
}

// Collect removes and returns the jobs that a batch takes along. idle is set for a batch without requests,
// which also takes isolated jobs. all is set for requests that refund or reset rows, because they must come
// after all waiting refunds. Unless all is set, Collect takes at most maxPerBatch jobs that are not
// isolated, and on each row only jobs of one window.
func Collect(b *Backlog, idle, all bool) []*Job {
	var jobs, left []*Job
	b.mu.Lock()
	defer b.mu.Unlock()
	windows := map[lease.RowID]int64{}
	for i, j := range b.jobs {
		if len(jobs) == maxPerBatch && !all {
			left = append(left, b.jobs[i:]...)
			break
		}
		id := lease.RowOf(j.Hit.Limit, j.Hit.Key)
		if other := windows[id]; other != 0 && other != j.Window && !all {
			left = append(left, j)
			continue
		}
		windows[id] = j.Window
		jobs = append(jobs, j)
	}
	b.jobs = left
	if idle {
		n := len(b.isolated)
		if n > maxIsolated {
			n = maxIsolated
		}
		jobs = append(jobs, b.isolated[:n]...)
		b.isolated = b.isolated[n:]
	}
	b.count()
	return jobs
}

// DropRefunds drops the refunds of leases, because a restored server may lack the charges that they refund.
// The refunds are the jobs with a Claim and without an End.
func DropRefunds(b *Backlog) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = withoutRefunds(b.jobs)
	b.isolated = withoutRefunds(b.isolated)
	b.count()
}

// withoutRefunds returns the jobs that DropRefunds keeps.
func withoutRefunds(jobs []*Job) []*Job {
	var left []*Job
	for _, j := range jobs {
		if j.Claim == 0 || j.End != nil {
			left = append(left, j)
		}
	}
	return left
}

// End ends the jobs of a batch, or adds them again to be retried. err is the error of their batch, or nil. If
// err is set, the jobs may or may not have had an effect. A job with an Err of its own had no effect.
func End(b *Backlog, jobs []*Job, err error) {
	now := time.Now()
	lost := 0
	var reason error
	for _, j := range jobs {
		failure := err
		repeated := j.Repeat
		if j.Err != nil {
			failure = j.Err
			j.Err = nil
			if j.failedAt.IsZero() {
				j.failedAt = now
			}
			j.Isolated = j.Isolated || !j.Unsent
			j.Unsent = false
			repeated = repeated || now.Sub(j.failedAt) < retryTime
		}
		if failure != nil && repeated && add(b, j, maxPause) {
			continue
		}
		if j.End == nil {
			continue
		}
		j.End(j.Granted, failure)
		if failure != nil {
			lost++
			reason = failure
		}
	}
	if lost > 0 {
		b.options.Report(lost, reason)
	}
}

// Flush sends the waiting jobs. It stops after timeout, or when the database is unavailable.
func Flush(b *Backlog, timeout time.Duration) {
	until := time.Now().Add(timeout)
	for atomic.LoadInt32(&b.Waiting) > 0 && time.Now().Before(until) &&
		b.options.Health.Unavailable() == nil {
		before := atomic.LoadInt32(&b.Waiting)
		b.options.Send()
		if atomic.LoadInt32(&b.Waiting) >= before {
			time.Sleep(time.Millisecond)
		}
	}
}

// Close ends the waiting jobs as lost, and those that are added later.
func Close(b *Backlog) {
	b.mu.Lock()
	b.closed = true
	jobs := b.jobs
	jobs = append(jobs, b.isolated...)
	b.jobs = nil
	b.isolated = nil
	b.count()
	b.mu.Unlock()
	End(b, jobs, ratelimit.ErrClosed)
}
