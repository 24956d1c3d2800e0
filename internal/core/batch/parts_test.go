package batch_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// newHits returns hits of some costs. An "i" after a cost is an Independent hit.
func newHits(costs string) (hits []ratelimit.Hit) {
	for text := range strings.FieldsSeq(costs) {
		hits = append(hits, ratelimit.Hit{Limit: &ratelimit.Limit{Events: 5}, Cost: int64(text[0] - '0'),
			Independent: strings.HasSuffix(text, "i")})
	}
	return hits
}

// splitTests lists hits, the calls that Split makes of them, and the result.
var splitTests = []struct {
	name  string
	hits  []ratelimit.Hit
	fails int64  // the cost of the part that fails
	parts string // costs
	want  string // costs, or the error
}{
	{name: "no independent hit", hits: newHits("1 2"), parts: "[1 2]", want: "[1 2]"},
	{name: "one", hits: newHits("1i 2 3"), parts: "[1][2 3]", want: "[1 2 3]"},
	{name: "between", hits: newHits("1 2i 3 4i"), parts: "[1 3][2][4]", want: "[1 2 3 4]"},
	{name: "only", hits: newHits("1i 2i"), parts: "[1][2]", want: "[1 2]"},
	{name: "an independent failure", hits: newHits("1 2i"), fails: 2, parts: "[1][2]", want: "[1 undecided]"},
	{name: "a failure of the others", hits: newHits("1i 2"), fails: 2, parts: "[1][2]", want: "failure"},
}

// Split makes a separate call of each Independent hit, so that its refusal or failure does not affect the
// other hits. The whole call finishes once, when its last part has finished.
func TestIndependentHitsAreSeparateCalls(t *testing.T) {
	failure := errors.New("failure")
	for _, test := range splitTests {
		delivered := 0
		var parts string
		var q *batch.Queue
		q = batch.NewQueue(batch.Options{
			Timeout: time.Minute, Workers: 1, Health: answering,
			Deliver: func(calls []*batch.Call) { delivered += len(calls) },
			Decide: func(calls []*batch.Call, _ time.Time) {
				for _, part := range batch.Split(calls) {
					var costs []int64
					for _, h := range part.Hits {
						costs = append(costs, h.Cost)
						part.Decisions = append(
							part.Decisions, ratelimit.Decision{Allowed: true, Remaining: h.Cost})
					}
					parts += fmt.Sprint(costs)
					var err error
					if costs[0] == test.fails {
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
			batch.Enter(t.Context(), q, c)
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
				t.Errorf("%s: parts %s, result %s; want %s, %s", test.name, parts, got, test.parts, test.want)
			}
		}
		if delivered != 2 {
			t.Errorf("%s: %d calls delivered, want 2", test.name, delivered)
		}
	}
}
