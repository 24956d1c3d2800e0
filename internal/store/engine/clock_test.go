package engine_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestAClockThatJumps: keys that were used while the server's clock was two days ahead have one full quota when it is
// right again, and so have keys of ten seconds after a clock that steps back ten minutes. Both drivers say so, also of
// requests with several limits, and to who peeks.
func TestAClockThatJumps(t *testing.T) {
	for driver, open := range drivers.All {
		t.Run(driver, func(t *testing.T) {
			s := newSite(t)
			s.exec(engine.TableSQL)
			clock := conformance.NewClock()
			o := without
			o.Now = clock.Now
			store := s.storeOn(open(t, s.dsn), o)
			for _, jump := range []struct {
				prefix string
				window time.Duration
				by     int64
			}{{"days/", time.Hour, 48 * 3600 * second}, {"minutes/", 10 * time.Second, 600 * second}} {
				limits := conformance.Limits(jump.prefix, 10)
				limits = limits[:len(limits)-1] // the calendar's year does not end
				hits := make([]ratelimit.Hit, len(limits))
				for i, l := range limits {
					l.Window = jump.window
					hits[i] = ratelimit.Hit{Limit: l, Key: "all", Cost: 10}
				}
				take := func(hits ...ratelimit.Hit) []ratelimit.Decision {
					decisions := make([]ratelimit.Decision, len(hits))
					if err := store.Take(t.Context(), longTime, hits, decisions); err != nil {
						t.Fatal(err)
					}
					return decisions
				}
				one := func(h ratelimit.Hit) ratelimit.Hit { h.Key = "one"; return h }
				peek := func(h ratelimit.Hit) ratelimit.Hit { h.Peek = true; return h }
				clock.Micro += jump.by
				take(hits...)
				for _, h := range hits {
					take(one(h))
				}
				clock.Micro -= jump.by
				for _, h := range hits {
					if d := take(peek(one(h)))[0]; !d.Allowed || d.Remaining != 10 {
						t.Errorf("%s: a peek says %+v", h.Limit.Prefix, d)
					}
					if d := take(one(h))[0]; !d.Allowed {
						t.Errorf("%s: %+v", h.Limit.Prefix, d)
					}
					if d := take(one(h))[0]; d.Allowed || d.RetryAfter > 2*jump.window {
						t.Errorf("%s, used up again: %+v", h.Limit.Prefix, d)
					}
				}
				for i, d := range take(hits...) {
					if !d.Allowed {
						t.Errorf("%s beside others: %+v", hits[i].Limit.Prefix, d)
					}
				}
			}
		})
	}
}
