package edge

import (
	"errors"
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
	shown   int32 // the highest Level at which the log shows it; atomic

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
	return o.sampler.Next(now, time.Second)
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

// failed logs a failure, see Failed.
func (o *Outage) failed(log func(Line), line Line, ofRequest bool) {
	dropped, ok := o.Failed(line.Err, ofRequest, time.Now())
	if o.IsUnderWay() && int32(line.Level) > atomic.LoadInt32(&o.shown) {
		atomic.StoreInt32(&o.shown, int32(line.Level))
	}
	if ok {
		line.Dropped = dropped
		log(line)
	}
}

// AnswersAgain logs that the outage has ended if decisions show it, at the level that showed the outage.
func (o *Outage) AnswersAgain(log func(Line), decisions []ratelimit.Decision) {
	lasted, undecided, ended := o.Ended(decisions, time.Now())
	if ended {
		level := Level(atomic.SwapInt32(&o.shown, 0))
		log(Line{Level: level, Text: "the database answers again", Lasted: lasted, Undecided: undecided})
	}
}

// LogNoDecision logs that no decision on a request was possible, and what happens to such requests.
func LogNoDecision(s *Site, q *Request) {
	line := Line{Level: Error, Text: "no decision: refusing requests", Err: q.Outcome.Err}
	if q.Outcome.Status == 0 {
		line.Level = Warn
		line.Text = "no decision: letting requests pass"
	}
	if s.Outage != nil {
		s.Outage.failed(s.Log, line, true)
	}
}
