package host_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// During an outage, a line a second is logged, and the same failure once a minute, before the outage and at
// its end again. The line at its end has the duration of the outage and the number of requests without a
// decision. A refusal from memory does not end an outage, and a late decision does not
// begin one.
func TestOutageIsSummedUpAtItsEnd(t *testing.T) {
	var o host.Outage
	var logged []host.Line
	log := func(line host.Line) { logged = append(logged, line) }
	now := time.Unix(1000, 0)
	for i := range 2500 {
		err := ratelimit.ErrUnavailable
		if i%2 == 1 {
			err = fmt.Errorf("a late decision: %w", ratelimit.ErrTimeout)
		}
		o.Failed(log, host.Line{Level: host.Warn, Err: err}, i%5 != 0,
			now.Add(time.Duration(i)*time.Millisecond))
	}
	o.Ended(log, []ratelimit.Decision{{Source: ratelimit.FromRemembered}}, now)
	if len(logged) != 2 || o.UnderWay == 0 {
		t.Errorf("after a refusal from memory, got %+v; want no line, and the outage under way", logged)
	}
	o.Failed(log, host.Line{Err: ratelimit.ErrUnavailable}, false, now.Add(time.Minute))
	if last := logged[len(logged)-1]; len(logged) != 3 || last.Dropped != 1498 {
		t.Errorf("after a minute, got %+v; want the first failure again", logged)
	}
	answered := []ratelimit.Decision{{Source: ratelimit.FromRemembered}, {Source: ratelimit.FromPostgres}}
	o.Ended(log, answered, now.Add(3*time.Second))
	last := logged[len(logged)-1]
	got := fmt.Sprintf("%d lines, level %d, %v, %d requests", len(logged), last.Level, last.Lasted,
		last.Undecided)
	if want := "4 lines, level 1, 3s, 2000 requests"; got != want {
		t.Errorf("at the end of the outage: %s, want %s", got, want)
	}
	if o.Ended(log, answered, now); len(logged) != 4 || o.UnderWay != 0 {
		t.Errorf("after a second Ended, %d lines are logged, want 4", len(logged))
	}
	o.Failed(log, host.Line{Err: ratelimit.ErrUnavailable}, false, now.Add(time.Minute+time.Second))
	if len(logged) != 5 {
		t.Errorf("in the next outage, got %+v; want the failure at once", logged)
	}
	o.Ended(log, answered, now)
	if o.Failed(log, host.Line{Err: ratelimit.ErrTimeout}, true, now); o.UnderWay != 0 {
		t.Error("a late decision starts an outage, want none")
	}
}
