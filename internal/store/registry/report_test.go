package registry

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// readRow returns the row of a node.
func readRow(t *testing.T, n *Node) row {
	t.Helper()
	var r row
	if err := json.Unmarshal([]byte(n.Report.makeRow(n, time.Now(), "", &Local{})), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// counts returns the requests of a row by their outcome.
func counts(r row) string {
	return fmt.Sprintf("%d admitted, %d refused, %d locally, %d undecided, last %d admitted and %d refused",
		r.Admitted, r.Refused, r.Locally, r.Undecided, r.UndecidedAdmitted, r.UndecidedRefused)
}

// A report counts each request as admitted, refused or undecided, and requests that a lease admits as
// admitted. For each limit, except of shadow rules, the report counts the requests that were charged to the
// limit or that the limit refused. After a pause of seriesPause, a new series of undecided requests begins.
func TestReportCountsOutcomes(t *testing.T) {
	n := Join(t.Name(), "a database")
	limits := []*ratelimit.Limit{{Prefix: "a"}, {Prefix: "b"}, {Prefix: "shadow"}}
	count := func(admitted bool, source ratelimit.Source, allowed ...bool) {
		var hits []ratelimit.Hit
		var decisions []ratelimit.Decision
		for i, a := range allowed {
			hits = append(hits, ratelimit.Hit{Limit: limits[i], Independent: i == 2})
			decisions = append(decisions, ratelimit.Decision{Allowed: a, Source: source})
		}
		n.Report.Count(admitted, hits, decisions)
	}
	count(true, ratelimit.FromPostgres, true, true, false)
	count(true, ratelimit.FromMemory, true)
	count(false, ratelimit.FromPostgres, true, false, true)
	count(false, ratelimit.FromPostgres)
	n.Report.Undecided(true)
	n.Report.Undecided(false)
	n.Report.Undecided(true)
	// A lease of b admits 7 requests, which count for b and as admitted.
	n.Report.Of("b").Leased += 7
	got := readRow(t, n)
	if want := `{"a":[2,0],"b":[8,1]}`; string(got.Busiest) != want {
		t.Errorf("Busiest = %s, want %s", got.Busiest, want)
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
	n.Report.row.UndecidedAt -= seriesPause.Microseconds()
	n.Report.Undecided(false)
	got = readRow(t, n)
	want = "9 admitted, 2 refused, 1 locally, 4 undecided, last 0 admitted and 1 refused"
	if text := counts(got); text != want || got.UndecidedFrom < first {
		t.Errorf("after a pause: got %s, want %s, and a new series", text, want)
	}
}

// Stores with the same name and database share a row. The row ends when the last of them leaves.
func TestLastStoreEndsRow(t *testing.T) {
	first := Join(t.Name(), "a database").Report
	second := Join(t.Name(), "a database").Report
	other := Join(t.Name(), "another").Report
	if first != second || first == other {
		t.Errorf("Join: equal reports on one database %v, on two %v; want true, false", first == second,
			first == other)
	}
	if last := first.leave(); last {
		t.Error("leave of the first of two stores = true, want false")
	}
	if last := second.leave(); !last {
		t.Error("leave of the second of two stores = false, want true")
	}
}
