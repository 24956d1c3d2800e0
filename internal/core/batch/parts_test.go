package batch_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
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
		var f functions
		f = functions{
			deliver: func(calls []*batch.Call) { delivered += len(calls) },
			decide: func(calls []*batch.Call, _ time.Time) {
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
					batch.Finish(f.queue, []*batch.Call{part}, err)
				}
			},
		}
		q := f.open(batch.Options{Workers: 1})
		c := batch.NewCall()
		for range 2 { // a call can be used again
			parts = ""
			c.Prepare(test.hits, false)
			_, err := batch.Enter(t.Context(), q, c, time.Now())
			got := fmt.Sprint(err)
			if err == nil {
				var costs []any
				for _, d := range c.Decisions {
					costs = append(costs, d.Remaining)
					if d.Source == ratelimit.Undecided {
						costs[len(costs)-1] = "undecided"
					}
				}
				got = fmt.Sprint(costs)
			}
			check.Equal(t, test.name+": parts", parts, test.parts)
			check.Equal(t, test.name, got, test.want)
		}
		check.Equal(t, test.name+": delivered calls", delivered, 2)
	}
}
