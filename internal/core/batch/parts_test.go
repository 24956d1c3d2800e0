package batch_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func part(cost int64, apart bool) ratelimit.Hit {
	return ratelimit.Hit{Limit: &ratelimit.Limit{Events: 5}, Cost: cost, Apart: apart}
}

// divided lists hits, the calls that Split makes of them, and the outcome.
var divided = []struct {
	name  string
	hits  []ratelimit.Hit
	fails map[int]bool // parts
	parts string       // costs
	want  string       // costs, or the error
}{
	{"none", []ratelimit.Hit{part(1, false), part(2, false)}, nil, "[1 2]", "[1 2]"},
	{"one", []ratelimit.Hit{part(1, true), part(2, false), part(3, false)}, nil, "[1][2 3]", "[1 2 3]"},
	{"between", []ratelimit.Hit{part(1, false), part(2, true), part(3, false), part(4, true)}, nil,
		"[1 3][2][4]", "[1 2 3 4]"},
	{"only", []ratelimit.Hit{part(1, true), part(2, true)}, nil, "[1][2]", "[1 2]"},
	{"a failure apart", []ratelimit.Hit{part(1, false), part(2, true)}, map[int]bool{1: true}, "[1][2]",
		"[1 undecided]"},
	{"a failure of the others", []ratelimit.Hit{part(1, true), part(2, false)}, map[int]bool{1: true},
		"[1][2]", "failure"},
}

// TestHitsApartAreCallsOfTheirOwn also checks that the whole call is finished once, with its last part.
func TestHitsApartAreCallsOfTheirOwn(t *testing.T) {
	failure := errors.New("failure")
	for _, test := range divided {
		delivered := 0
		var parts string
		var q *batch.Queue
		q = batch.NewQueue(batch.Options{
			Timeout: time.Minute, Workers: 1,
			Deliver: func(calls []*batch.Call) { delivered += len(calls) },
			Decide: func(calls []*batch.Call, _ time.Time) {
				for i, part := range batch.Split(calls) {
					var costs []int64
					for _, h := range part.Hits {
						costs = append(costs, h.Cost)
						part.Decisions = append(
							part.Decisions, ratelimit.Decision{Allowed: true, Remaining: h.Cost})
					}
					parts += fmt.Sprint(costs)
					var err error
					if test.fails[i] {
						err = failure
					}
					batch.Finish(q, []*batch.Call{part}, err)
				}
			},
		})
		c := batch.NewCall()
		for range 2 { // a call can be used again
			parts = ""
			c.Prepare(test.hits, false)
			batch.Enter(q, c)
			got := fmt.Sprint(c.Err)
			if c.Err == nil {
				var costs []any
				for _, d := range c.Decisions {
					costs = append(costs, d.Remaining)
					if d.Source == ratelimit.Undecided {
						costs[len(costs)-1] = "undecided"
					}
				}
				got = fmt.Sprint(costs)
			}
			if parts != test.parts || got != test.want {
				t.Errorf("%s: parts %s, want %s; outcome %s, want %s", test.name, parts, test.parts,
					got, test.want)
			}
		}
		if delivered != 2 {
			t.Errorf("%s: %d calls delivered", test.name, delivered)
		}
	}
}
