package edge

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Outage is what the log says of a database that makes no decisions: at most a line a second, and one when the database
// answers again.
type Outage struct {
	sampler Sampler
	under   int32 // 1 while one is under way; atomic

	mu        sync.Mutex // guards what follows
	began     time.Time
	undecided int64 // requests
}

// Failed records a failure, and whether it was that of a request. It reports whether a line may be logged at now, and how
// many failures had none since the last one. An outage begins only if the database does not answer: not if a row is
// locked, or if a decision came too late.
func (o *Outage) Failed(err error, ofRequest bool, now time.Time) (dropped int64, ok bool) {
	if errors.Is(err, ratelimit.ErrUnavailable) || ofRequest && o.IsUnderWay() {
		o.mu.Lock()
		if atomic.SwapInt32(&o.under, 1) == 0 {
			o.began = now
			o.undecided = 0
		}
		if ofRequest {
			o.undecided++
		}
		o.mu.Unlock()
	}
	return o.sampler.Next(now)
}

// IsUnderWay reports whether there is an outage. It is cheap.
func (o *Outage) IsUnderWay() bool { return atomic.LoadInt32(&o.under) == 1 }

// Ended is called with the decisions of a request. If they show that the database answers, it returns how long the outage
// lasted and how many requests had no decision in it, for one caller. A refusal from memory shows nothing.
func (o *Outage) Ended(decisions []ratelimit.Decision, now time.Time) (lasted time.Duration, undecided int64, ended bool) {
	if !o.IsUnderWay() {
		return 0, 0, false
	}
	answered := false
	for i := range decisions {
		answered = answered || decisions[i].Source == ratelimit.FromPostgres
	}
	if !answered {
		return 0, 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !atomic.CompareAndSwapInt32(&o.under, 1, 0) {
		return 0, 0, false
	}
	return now.Sub(o.began).Round(time.Millisecond), o.undecided, true
}

// AnswersAgain is the line after an outage.
func AnswersAgain(lasted time.Duration, undecided int64) string {
	return "the database answers again, after " + lasted.String() + ": " + strconv.FormatInt(undecided, 10) + " requests had no decision"
}
