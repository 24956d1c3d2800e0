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

// A refund undoes a charge of the same time: afterwards, the row decides as before the charge. Transactions
// depend on that.
func TestRefundUndoesTake(t *testing.T) {
	conformance.EachDefinition(t, 3000, func(t *rapid.T, name string) {
		l := conformance.DrawLimit(t, name, "p")
		others := drawFamily(t, l)
		k := drawState(t, l, others...)
		if len(others) == 0 {
			k.setBack(t)
		}
		d, row := algorithm.Of(l), *k.rows["p/k"]
		n, cost := rapid.Int64Range(1, 4).Draw(t, "n"), conformance.DrawCost(t, l)
		after := row
		granted := d.Charge(l, &after, k.Micro, n, cost)
		switch {
		case granted == 0:
			after = row
		case rapid.Bool().Draw(t, "in one refund"):
			d.Adjust(l, &after, k.Micro, granted*cost, 0)
		default:
			for range granted {
				d.Adjust(l, &after, k.Micro, cost, 0)
			}
		}
		free, reset := d.Peek(l, &row, k.Micro)
		if f, r := d.Peek(l, &after, k.Micro); f != free || r != reset {
			t.Fatalf("%+v: Peek after a charge of %d and its refund: got %d until %d, want %d until %d\n"+
				"%+v\n%+v", *l, granted*cost, f, r, free, reset, row, after)
		}
		for range 3 {
			n, cost := rapid.Int64Range(1, 4).Draw(t, "n"), conformance.DrawCost(t, l)
			a, b := row, after
			got, want := d.Charge(l, &b, k.Micro, n, cost), d.Charge(l, &a, k.Micro, n, cost)
			if got != want {
				t.Fatalf("%+v: a charge of %d hits of cost %d after one and its refund: got %d, want %d",
					*l, n, cost, got, want)
			}
			if want == 0 && d.Passes(l, &after, k.Micro, cost) != d.Passes(l, &row, k.Micro, cost) {
				t.Fatalf("%+v: Passes of cost %d after a take and its refund: got %d, want %d", *l, cost,
					d.Passes(l, &after, k.Micro, cost), d.Passes(l, &row, k.Micro, cost))
			}
		}
	})
}

// drawFamily draws other limits that share the state of a limit. A calendar window has none, because its Peek
// reads the end of the window from the row, which another limit may have written.
func drawFamily(t *rapid.T, l *ratelimit.Limit) []*ratelimit.Limit {
	var others []*ratelimit.Limit
	for _, names := range [][]string{{"sliding_window", "fixed_window"}, {"token_bucket", "gcra"},
		{"sliding_log"}} {
		for _, name := range names {
			if algorithm.Of(l).Name == name && rapid.Bool().Draw(t, "switched") {
				others = append(
					others, conformance.DrawLimit(t, rapid.SampledFrom(names).Draw(t, "other"), l.Prefix))
			}
		}
	}
	return others
}
