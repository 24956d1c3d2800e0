package registry

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// read returns the row of a node.
func read(t *testing.T, n *Node) row {
	t.Helper()
	var r row
	if err := json.Unmarshal([]byte(n.Report.makeRow(n, time.Now())), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// The row of a proxy says what became of its requests: each is admitted, refused or undecided. A limit counts
// the requests that it was charged with or that it refused.
func TestAReport(t *testing.T) {
	n := Join(t.Name(), "a database")
	limits := []*ratelimit.Limit{{Prefix: "a"}, {Prefix: "b"}, {Prefix: "shadow"}}
	count := func(admitted bool, source ratelimit.Source, allowed ...bool) {
		var hits []ratelimit.Hit
		var decisions []ratelimit.Decision
		for i, a := range allowed {
			hits = append(hits, ratelimit.Hit{Limit: limits[i], Apart: i == 2})
			decisions = append(decisions, ratelimit.Decision{Allowed: a, Source: source})
		}
		n.Report.Count(admitted, hits, decisions)
	}
	count(true, ratelimit.FromPostgres, true, true, false)
	count(true, ratelimit.FromMemory, true)
	count(false, ratelimit.FromPostgres, true, false, true)
	count(false, ratelimit.FromPostgres)
	n.Report.Undecided()
	n.Report.Undecided()
	n.Report.Of("b").Leased += 7
	got := read(t, n)
	if string(got.Busiest) != `{"a":[2,0],"b":[8,1]}` || got.Admitted != 9 || got.Refused != 2 ||
		got.Undecided != 2 || got.UndecidedAt > got.Clock || got.Locally != 1 {
		t.Errorf("%+v, want 9 admitted, 2 refused, 2 undecided, 1 local, 2 of a and 9 of b", got)
	}
}

// Stores of one name on one database share a row, which ends with the last of them.
func TestTheLastStoreEndsTheRow(t *testing.T) {
	first := Join(t.Name(), "a database").Report
	second := Join(t.Name(), "a database").Report
	other := Join(t.Name(), "another").Report
	if first != second || first == other || first.leave() || !second.leave() {
		t.Error("the stores of a database do not share a row until the last of them ends")
	}
}

// The row stays small with any number of limits and any names, and has the busiest ones.
func TestAReportOfManyLimits(t *testing.T) {
	for name, prefix := range map[string]string{"short": "p", "long": strings.Repeat("p", 150)} {
		n := Join(t.Name()+name, "a database")
		for i := range 30_000 {
			n.Report.Of(fmt.Sprint(prefix, i)).Leased = int64(i % 10_000)
		}
		got := read(t, n).Busiest
		var busiest map[string][2]int64
		if err := json.Unmarshal(got, &busiest); err != nil || len(got) > 500 || len(busiest) == 0 ||
			len(busiest) > 20 {
			t.Errorf("%s names: %d limits in %d bytes, %v", name, len(busiest), len(got), err)
		}
		if most := busiest[prefix+"9999"]; most != [2]int64{9999, 0} {
			t.Errorf("%s names: the busiest limit has %d", name, most)
		}
	}
}
