package edge_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The row of a proxy says what became of its requests: each is admitted, refused or without a decision, and those of a limit
// are the ones that it was charged with or that it refused.
func TestTotals(t *testing.T) {
	totals := edge.NewTotals()
	limits := []*ratelimit.Limit{{Prefix: "a"}, {Prefix: "b"}, {Prefix: "shadow"}}
	request := func(o respond.Outcome, allowed ...bool) *edge.Request {
		q := &edge.Request{Outcome: o}
		for i, a := range allowed {
			q.Hits = append(q.Hits, ratelimit.Hit{Limit: limits[i], Apart: i == 2})
			q.Decisions = append(q.Decisions, ratelimit.Decision{Allowed: a})
		}
		return q
	}
	local := ratelimit.Decision{Source: ratelimit.FromMemory}
	for _, q := range []*edge.Request{
		request(respond.Outcome{}, true, true, false),
		request(respond.Outcome{Decision: &local}, true),
		request(respond.Outcome{Status: 429}, true, false, true),
		request(respond.Outcome{Status: 403}),
		request(respond.Outcome{Err: ratelimit.ErrOverloaded, Status: 503}, true),
		request(respond.Outcome{Err: ratelimit.ErrUnavailable}, true),
	} {
		totals.Count(q)
	}
	totals.Of("b").Leased += 7
	got := totals.Read()
	if want := `{"a":[2,0],"b":[8,1]}`; got.Busiest != want || got.Admitted != 9 || got.Refused != 2 || got.Undecided != 2 || got.Local != 1 {
		t.Errorf("%+v, want 9 admitted, 2 refused, 2 undecided, 1 local, %s", got, want)
	}
}

// The row stays small with any number of limits and any names, and has the busiest ones.
func TestTotalsOfManyLimits(t *testing.T) {
	for name, prefix := range map[string]string{"short": "p", "long": strings.Repeat("p", 150), "not UTF-8": "\xff"} {
		totals := edge.NewTotals()
		for i := range 30_000 {
			totals.Of(fmt.Sprint(prefix, i)).Leased = int64(i % 10_000)
		}
		got := totals.Read()
		var busiest map[string][2]int64
		if err := json.Unmarshal([]byte(got.Busiest), &busiest); err != nil || len(got.Busiest) > 500 || len(busiest) == 0 || len(busiest) > 20 {
			t.Errorf("%s names: %d limits in %d bytes, %v", name, len(busiest), len(got.Busiest), err)
		}
		if most := busiest[strings.ToValidUTF8(prefix, "")+"9999"]; most != [2]int64{9999, 0} {
			t.Errorf("%s names: the busiest limit has %d", name, most)
		}
	}
}
