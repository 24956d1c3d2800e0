package registry

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// readReport returns the report of a node.
func readReport(t *testing.T, n *Node) report {
	t.Helper()
	var r report
	text, _ := n.encode(time.Now())
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// counts returns the requests of a report by their outcome.
func counts(r report) string {
	return fmt.Sprintf("%v, %d locally, last %d passed and %d refused", r.Requests[:outcome.Failed+1],
		r.Locally, r.UndecidedPassed,
		r.UndecidedRefused)
}

// A report counts each request by its outcome, and requests that a lease admits as admitted. For each limit,
// except of shadow rules, the report counts the requests that were charged to the limit or that the limit
// refused. After a pause of seriesPause, a new series of requests without a decision begins.
func TestReportCountsOutcomes(t *testing.T) {
	n := Join(t.Name(), "a database", "", "")
	limits := []*ratelimit.Limit{{Prefix: "a"}, {Prefix: "b"}, {Prefix: "shadow"}}
	count := func(kind outcome.Kind, allowed ...bool) {
		var hits []ratelimit.Hit
		var decisions []ratelimit.Decision
		for i, a := range allowed {
			hits = append(hits, ratelimit.Hit{Limit: limits[i], Independent: i == 2})
			decisions = append(decisions, ratelimit.Decision{Allowed: a})
		}
		Count(n, Counted{kind, kind == outcome.Admitted, hits, decisions})
	}
	count(outcome.Admitted, true, true, false)
	count(outcome.Admitted, true)
	count(outcome.Limited, true, false, true)
	count(outcome.Blocked)
	n.CountLocal(time.Now(), time.Now())
	Count(n, Counted{outcome.Failed, true, nil, nil})
	Count(n, Counted{outcome.Overloaded, false, nil, nil})
	Count(n, Counted{outcome.Failed, true, nil, nil})
	// A lease of b admits 7 requests, which count for b and as admitted.
	*n.Leased("b") += 7
	got := readReport(t, n)
	if want := "map[a:[2 0] b:[8 1]]"; fmt.Sprint(got.Busiest) != want {
		t.Errorf("Busiest = %v, want %s", got.Busiest, want)
	}
	want := "[9 1 1 0 1 2], 1 locally, last 2 passed and 1 refused"
	check.Equal(t, "counts", counts(got), want)
	first := got.UndecidedFrom
	if first == 0 || got.UndecidedUntil < first || got.UndecidedUntil > got.Clock {
		t.Errorf("the series lasts from %d until %d, want times up to Clock, %d", first, got.UndecidedUntil,
			got.Clock)
	}
	n.report.UndecidedUntil -= seriesPause.Microseconds()
	Count(n, Counted{outcome.Failed, false, nil, nil})
	got = readReport(t, n)
	want = "[9 1 1 0 1 3], 1 locally, last 0 passed and 1 refused"
	if text := counts(got); text != want || got.UndecidedFrom < first {
		t.Errorf("after a pause: got %s, want %s, and a new series", text, want)
	}
}

// A report names what a server refuses in the DSN of another database of the process, until its store closes.
func TestReportNamesRefusedParameterOfOtherDatabase(t *testing.T) {
	n, other := Join(t.Name(), "a database", "", ""), Join(t.Name(), "another", "", "")
	n.SetApplied("1:1:", "1", []string{"rule r: off"})
	other.SetRefused(fmt.Errorf("as user u: %w: no parameter", pgdb.ErrConfiguration))
	const want = "[of another database, the server refuses the configuration: no parameter rule r: off]"
	check.Equal(t, "problems", fmt.Sprint(readReport(t, n).Problems), want)
	check.Equal(t, "its own report", fmt.Sprint(readReport(t, other).Problems), "[]")
	for what, end := range map[string]func(){"it accepts": func() { other.SetRefused(nil) },
		"it is closed": func() { other.Leave(nil) }} {
		other.SetRefused(pgdb.ErrConfiguration)
		end()
		if got := fmt.Sprint(readReport(t, n).Problems); got != "[rule r: off]" {
			t.Errorf("after %s: got %s", what, got)
		}
		atomic.StoreInt32(&other.stores, 1)
	}
}
