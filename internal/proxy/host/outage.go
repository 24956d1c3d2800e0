package host

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Outage logs the failures of a database that makes no decisions: at most a line a second, and one line when
// the database answers again.
type Outage struct {
	UnderWay int32 // 1 during an outage; atomic

	sampler Sampler
	shown   int32 // the highest Level logged during the outage; atomic

	mu        sync.Mutex // guards the fields below
	start     time.Time
	undecided int64 // requests without a decision during the outage
}

// Failed logs a failure of a request or of background work. Only a database that does not answer starts an
// outage; a locked row or a late decision does not.
func (o *Outage) Failed(log func(Line), line Line, ofRequest bool, now time.Time) {
	if errors.Is(line.Err, ratelimit.ErrUnavailable) || ofRequest && atomic.LoadInt32(&o.UnderWay) != 0 {
		o.mu.Lock()
		if atomic.SwapInt32(&o.UnderWay, 1) == 0 {
			o.start = now
			o.undecided = 0
		}
		if ofRequest {
			o.undecided++
		}
		o.mu.Unlock()
	}
	dropped, ok := o.sampler.Allow(now, time.Second)
	if atomic.LoadInt32(&o.UnderWay) != 0 && int32(line.Level) > atomic.LoadInt32(&o.shown) {
		atomic.StoreInt32(&o.shown, int32(line.Level))
	}
	if ok {
		line.Dropped = dropped
		log(line)
	}
}

// Ended logs the end of an outage, at the level of the outage, if one of the decisions comes from the
// database. A refusal from memory proves nothing.
func (o *Outage) Ended(log func(Line), decisions []ratelimit.Decision, now time.Time) {
	answered := false
	for i := range decisions {
		answered = answered || decisions[i].Source == ratelimit.FromPostgres
	}
	if !answered {
		return
	}
	o.mu.Lock()
	ended := atomic.CompareAndSwapInt32(&o.UnderWay, 1, 0)
	lasted := now.Sub(o.start).Round(time.Millisecond)
	undecided := o.undecided
	o.mu.Unlock()
	if ended {
		level := Level(atomic.SwapInt32(&o.shown, 0))
		log(Line{Level: level, Text: "the database answers again", Lasted: lasted, Undecided: undecided})
	}
}
