package algorithm_test

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A request charges all rows if each hit would pass alone, and otherwise none. Refunds always take effect.
func TestRequestsAreChargedAllOrNothing(t *testing.T) {
	conformance.Check(t, 5000, func(t *rapid.T) {
		k := newKeys()
		n := 0
		limits := conformance.DrawSmallLimits(t, func() string { n++; return fmt.Sprint("p", n) })
		for n := rapid.IntRange(1, 8).Draw(t, "requests"); n > 0; n-- {
			k.Micro += conformance.DrawAdvance(t, limits[0], 0)
			hits := conformance.DrawRequest(t, limits, true)
			// Decide each hit alone, on a copy of its row.
			allAllowed := true
			before, alone := map[string]algorithm.Row{}, newKeys()
			var allowed []bool
			for _, h := range hits {
				name := h.Limit.Prefix + "/" + h.Key
				if r := k.rows[name]; r != nil {
					before[name] = *r
				}
				row := before[name]
				alone.rows[name] = &row
				alone.Micro = k.Micro
				allowed = append(allowed, alone.decide(h)[0].Allowed)
				allAllowed = allAllowed && allowed[len(allowed)-1]
			}
			decisions := k.decide(hits...)
			for i, h := range hits {
				name := h.Limit.Prefix + "/" + h.Key
				want := before[name]
				if allAllowed || h.Cost < 0 {
					want = *alone.rows[name]
				}
				got := *k.rows[name]
				if decisions[i].Allowed != allowed[i] || !reflect.DeepEqual(got, want) {
					t.Fatalf("hit %d of %+v: got %+v\n   row %+v\n  want %+v, allowed %v", i, hits,
						decisions[i], got, want, allowed[i])
				}
				cost := int64(1)
				if !decisions[i].Allowed {
					cost = h.Cost
				}
				peek := k.decide(ratelimit.Hit{Limit: h.Limit, Key: h.Key, Cost: cost, Peek: true})[0]
				if peek.Remaining != decisions[i].Remaining || peek.Allowed == decisions[i].Allowed &&
					peek.Reset != decisions[i].Reset {
					t.Fatalf("hit %d of %+v: a peek after it: got %+v, want %+v", i, hits, peek, decisions[i])
				}
			}
		}
	})
}
