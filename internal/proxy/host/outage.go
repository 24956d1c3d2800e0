package host

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Outage logs the failures of a database that makes no decisions: at most a line a second, the same failure
// once a minute, and one line when the database answers again.
type Outage struct {
	UnderWay int32 // 1 during an outage; atomic

	mu        sync.Mutex // guards the fields below
	shown     Level      // the highest one of the outage
	start     time.Time
	undecided int64                // requests without a decision during the outage
	logged    map[string]time.Time // when a failure was logged, by its text
	next      time.Time            // no line is logged before
	dropped   int64                // the failures that were not logged since the last line
}

// maxLogged bounds the failures in Outage.logged, whose texts can have numbers.
const maxLogged = 100

// Failed logs a failure of a request or of background work, unless log is nil. Only a database that does not
// answer starts an outage; a locked row or a late decision does not.
func (o *Outage) Failed(log func(Line), line Line, ofRequest bool, now time.Time) {
	text := fmt.Sprint(line.Text, line.Err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.Is(line.Err, ratelimit.ErrUnavailable) || ofRequest && atomic.LoadInt32(&o.UnderWay) != 0 {
		if atomic.SwapInt32(&o.UnderWay, 1) == 0 {
			o.start = now
			o.undecided = 0
			o.shown = 0
		}
		if ofRequest {
			o.undecided++
		}
	}
	if line.Level > o.shown {
		o.shown = line.Level
	}
	if log == nil {
		return
	}
	if now.Before(o.next) || now.Sub(o.logged[text]) < time.Minute {
		o.dropped++
		return
	}
	o.next = now.Add(time.Second)
	if len(o.logged) >= maxLogged || o.logged == nil {
		o.logged = map[string]time.Time{}
	}
	o.logged[text] = now
	line.Dropped = o.dropped
	o.dropped = 0
	log(line)
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
	defer o.mu.Unlock()
	if atomic.CompareAndSwapInt32(&o.UnderWay, 1, 0) {
		o.logged = nil
		log(Line{Level: o.shown, Text: "the database answers again",
			Lasted: now.Sub(o.start).Round(time.Millisecond), Undecided: o.undecided})
	}
}
