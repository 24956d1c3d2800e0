package registry

import (
	"encoding/json"
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

// Each request is admitted, refused or undecided. A limit counts the requests that are charged to it or that
// it refuses.
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
	n.Report.Of("b").Leased += 7
	got := readRow(t, n)
	if want := `{"a":[2,0],"b":[8,1]}`; string(got.Busiest) != want {
		t.Errorf("Busiest = %s, want %s", got.Busiest, want)
	}
	if got.Admitted != 9 || got.Refused != 2 || got.Undecided != 3 || got.Locally != 1 {
		t.Errorf("row = %+v, want 9 admitted, 2 refused, 3 undecided, 1 locally", got)
	}
	if got.UndecidedAdmitted != 2 || got.UndecidedRefused != 1 {
		t.Errorf("row = %+v, want 2 undecided requests admitted, and 1 refused", got)
	}
	first := got.UndecidedFrom
	if first == 0 || got.UndecidedAt < first || got.UndecidedAt > got.Clock {
		t.Errorf("the series lasts from %d until %d, want times up to Clock, %d", first, got.UndecidedAt,
			got.Clock)
	}
	n.Report.row.UndecidedAt -= seriesPause.Microseconds()
	n.Report.Undecided(false)
	got = readRow(t, n)
	if got.UndecidedFrom < first || got.UndecidedAdmitted != 0 || got.UndecidedRefused != 1 ||
		got.Undecided != 4 {
		t.Errorf("after an hour without one: row = %+v, want a new series, and 4 undecided in total", got)
	}
}

// Stores of one name on one database share a row, which ends with the last of them.
func TestLastStoreEndsRow(t *testing.T) {
	first := Join(t.Name(), "a database").Report
	second := Join(t.Name(), "a database").Report
	other := Join(t.Name(), "another").Report
	if first != second || first == other {
		t.Error("Join: the reports differ on one database or are one on two databases, want one for each")
	}
	if last := first.leave(); last {
		t.Error("leave of the first of two stores = true, want false")
	}
	if last := second.leave(); !last {
		t.Error("leave of the second of two stores = false, want true")
	}
}
