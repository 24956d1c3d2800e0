package registry_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The row of a proxy says what became of its requests: each is admitted, refused or undecided. A limit counts
// the requests that it was charged with or that it refused.
func TestAReport(t *testing.T) {
	_, report := registry.Join(t.Name(), "a database")
	limits := []*ratelimit.Limit{{Prefix: "a"}, {Prefix: "b"}, {Prefix: "shadow"}}
	count := func(admitted bool, source ratelimit.Source, allowed ...bool) {
		var hits []ratelimit.Hit
		var decisions []ratelimit.Decision
		for i, a := range allowed {
			hits = append(hits, ratelimit.Hit{Limit: limits[i], Apart: i == 2})
			decisions = append(decisions, ratelimit.Decision{Allowed: a, Source: source})
		}
		report.Count(admitted, hits, decisions)
	}
	count(true, ratelimit.FromPostgres, true, true, false)
	count(true, ratelimit.FromMemory, true)
	count(false, ratelimit.FromPostgres, true, false, true)
	count(false, ratelimit.FromPostgres)
	report.Undecided()
	report.Undecided()
	report.Of("b").Leased += 7
	got := report.Read()
	if got.Busiest != `{"a":[2,0],"b":[8,1]}` || got.Admitted != 9 || got.Refused != 2 ||
		got.Undecided != 2 || got.Local != 1 {
		t.Errorf("%+v, want 9 admitted, 2 refused, 2 undecided, 1 local, 2 of a and 9 of b", got)
	}
}

// Stores of one name on one database share a row, which ends with the last of them.
func TestTheLastStoreEndsTheRow(t *testing.T) {
	first, one := registry.Join(t.Name(), "a database")
	second, same := registry.Join(t.Name(), "a database")
	_, other := registry.Join(t.Name(), "another")
	if one != same || one == other || first.Leave() || !second.Leave() {
		t.Error("the stores of a database do not share a row until the last of them ends")
	}
}

// The row stays small with any number of limits and any names, and has the busiest ones.
func TestAReportOfManyLimits(t *testing.T) {
	for name, prefix := range map[string]string{"short": "p", "long": strings.Repeat("p", 150),
		"not UTF-8": "\xff"} {
		_, report := registry.Join(t.Name()+name, "a database")
		for i := range 30_000 {
			report.Of(fmt.Sprint(prefix, i)).Leased = int64(i % 10_000)
		}
		got := report.Read()
		var busiest map[string][2]int64
		if err := json.Unmarshal([]byte(got.Busiest), &busiest); err != nil || len(got.Busiest) > 500 ||
			len(busiest) == 0 || len(busiest) > 20 {
			t.Errorf("%s names: %d limits in %d bytes, %v", name, len(busiest), len(got.Busiest), err)
		}
		if most := busiest[strings.ToValidUTF8(prefix, "")+"9999"]; most != [2]int64{9999, 0} {
			t.Errorf("%s names: the busiest limit has %d", name, most)
		}
	}
}
