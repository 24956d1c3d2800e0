package edge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// All requests of an outage are in one count with its time, however few lines the log has.
func TestAnOutageIsOneCount(t *testing.T) {
	var o edge.Outage
	now := time.Unix(1000, 0)
	logged := 0
	for i := range 2500 {
		err := ratelimit.ErrUnavailable
		if i%2 == 1 {
			err = fmt.Errorf("a late one: %w", ratelimit.ErrTimeout)
		}
		if _, ok := o.Failed(err, i%5 != 0, now.Add(time.Duration(i)*time.Millisecond)); ok {
			logged++
		}
	}
	known := []ratelimit.Decision{{Source: ratelimit.FromBlocked}}
	if _, _, ended := o.Ended(known, now); ended || logged != 3 {
		t.Errorf("%d lines, and a refusal from memory ends it: %v", logged, ended)
	}
	answered := []ratelimit.Decision{{Source: ratelimit.FromBlocked}, {Source: ratelimit.FromPostgres}}
	lasted, undecided, ended := o.Ended(answered, now.Add(3*time.Second))
	if !ended || lasted != 3*time.Second || undecided != 2000 {
		t.Errorf("%v, %v, %v", lasted, undecided, ended)
	}
	if _, _, twice := o.Ended(answered, now); twice || o.IsUnderWay() {
		t.Error("it ends twice")
	}
	if o.Failed(ratelimit.ErrTimeout, true, now); o.IsUnderWay() {
		t.Error("a late decision is an outage")
	}
}
