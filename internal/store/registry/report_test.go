package registry

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
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
	return fmt.Sprintf("%d admitted, %d refused, %d locally, %d undecided, last %d admitted and %d refused",
		r.Admitted, r.Refused, r.Locally, r.Undecided, r.UndecidedAdmitted, r.UndecidedRefused)
}

// A report counts each request as admitted, refused or undecided, and requests that a lease admits as
// admitted. For each limit, except of shadow rules, the report counts the requests that were charged to the
// limit or that the limit refused. After a pause of seriesPause, a new series of undecided requests begins.
func TestReportCountsOutcomes(t *testing.T) {
	n := Join(t.Name(), "a database", "", "")
	limits := []*ratelimit.Limit{{Prefix: "a"}, {Prefix: "b"}, {Prefix: "shadow"}}
	count := func(admitted bool, allowed ...bool) {
		var hits []ratelimit.Hit
		var decisions []ratelimit.Decision
		for i, a := range allowed {
			hits = append(hits, ratelimit.Hit{Limit: limits[i], Independent: i == 2})
			decisions = append(decisions, ratelimit.Decision{Allowed: a})
		}
		Count(n, admitted, hits, decisions)
	}
	count(true, true, true, false)
	count(true, true)
	count(false, true, false, true)
	count(false)
	n.CountLocal(time.Now(), time.Now())
	n.CountUndecided(true)
	n.CountUndecided(false)
	n.CountUndecided(true)
	// A lease of b admits 7 requests, which count for b and as admitted.
	*n.Leased("b") += 7
	got := readReport(t, n)
	if want := "map[a:[2 0] b:[8 1]]"; fmt.Sprint(got.Busiest) != want {
		t.Errorf("Busiest = %v, want %s", got.Busiest, want)
	}
	want := "9 admitted, 2 refused, 1 locally, 3 undecided, last 2 admitted and 1 refused"
	if got := counts(got); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	first := got.UndecidedFrom
	if first == 0 || got.UndecidedAt < first || got.UndecidedAt > got.Clock {
		t.Errorf("the series lasts from %d until %d, want times up to Clock, %d", first, got.UndecidedAt,
			got.Clock)
	}
	n.report.UndecidedAt -= seriesPause.Microseconds()
	n.CountUndecided(false)
	got = readReport(t, n)
	want = "9 admitted, 2 refused, 1 locally, 4 undecided, last 0 admitted and 1 refused"
	if text := counts(got); text != want || got.UndecidedFrom < first {
		t.Errorf("after a pause: got %s, want %s, and a new series", text, want)
	}
}
