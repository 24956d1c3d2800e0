package answers_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The used units that rate_limit_usage_of returns and the free units that Peek returns add up to the quota,
// and both return the same time of reset. The same holds for a row that first had hits of another limit.
func TestUsedAndLeftAddUpToTheQuota(t *testing.T) {
	s := sqltest.Open(t, schema.File)
	conformance.EachDefinition(t, 300, func(t *rapid.T, name string) {
		k, r := conformance.NewClock(), &algorithm.Row{}
		l := conformance.DrawLimit(t, name, "p")
		other := conformance.DrawLimit(t, rapid.SampledFrom(conformance.Definitions()).Draw(t, "other").Name,
			"p")
		for n := rapid.IntRange(0, 8).Draw(t, "hits"); n > 0; n-- {
			by := l
			if n > 4 { // the last four hits are of l
				by = other
			}
			k.Micro += conformance.DrawAdvance(t, by, 0)
			algorithm.Of(by).Charge(by, r, k.Micro, 1, conformance.DrawCost(t, by))
		}
		k.Micro += conformance.DrawAdvance(t, l, 0)
		number := func(n int64) *int64 {
			if n == 0 {
				return nil
			}
			return &n
		}
		at := func(micro int64) *time.Time {
			if micro == 0 {
				return nil
			}
			t := time.UnixMicro(micro)
			return &t
		}
		var tokens *float64
		if r.HasTokens {
			tokens = &r.Tokens
		}
		hits := make([]time.Time, len(r.Hits))
		for i, hit := range r.Hits {
			hits[i] = time.UnixMicro(hit)
		}
		var used int64
		var resets *time.Time
		if err := s.Conn.QueryRow(t.Context(),
			"SELECT * FROM rate_limit_usage_of($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
			l.Algorithm.String(), l.Events, number(l.Burst), number(l.Window.Microseconds()), r.Count,
			number(r.PrevCount), at(r.Start), tokens, at(r.Refill),
			number(r.Remainder), hits, r.Slots, at(r.Expires), at(k.Micro)).Scan(&used, &resets); err != nil {
			t.Fatal(err)
		}
		left, reset := algorithm.Of(l).Peek(l, r, k.Micro)
		if used != l.Capacity()-left {
			t.Errorf("%+v, %+v at %d: %d are used, want %d", *l, *r, k.Micro, used, l.Capacity()-left)
		}
		if known := l.Algorithm != ratelimit.InFlight && used > 0; known != (resets != nil) {
			t.Errorf("%+v, %+v at %d: reset at %v with %d used, want a time: %v", *l, *r, k.Micro, resets,
				used, known)
		} else if known && reset < math.MaxInt64/4 &&
			resets.Sub(time.UnixMicro(reset)).Abs() > time.Millisecond {
			t.Errorf("%+v, %+v at %d: reset at %v, want %v", *l, *r, k.Micro, resets, time.UnixMicro(reset))
		}
	})
}
