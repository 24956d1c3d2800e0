package history_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// hits returns hits on limits from pairs of a prefix, with a unit or not, and a cost.
func hits(pairs ...any) (list []ratelimit.Hit) {
	for i := 0; i < len(pairs); i += 2 {
		prefix, unit, _ := strings.Cut(pairs[i].(string), " ")
		list = append(list, ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: prefix, Unit: unit},
			Cost: int64(pairs[i+1].(int))})
	}
	return list
}

var auditAll = option.Audit{Level: option.AuditAll}

// Each column of the tables has the value of the record.
func TestTablesHaveAllValues(t *testing.T) {
	d := newTestDB(t)
	db := drivers.All["pgwire"](t, d.DSN)
	defer db.Close()
	w := d.newWriterOn(db, history.Settings{Region: "eu",
		Retention: []option.Retention{{What: "audit", Keep: 30 * 24 * time.Hour}}})
	history.Add(w, &history.Record{
		Time: baseTime, Outcome: outcome.Limited, Reason: "no_quota", Model: "gpt-5",
		Prefix: "rule/api/per_hour",
		Key:    `a"b\c`, User: "anna", KeyID: 7, Tier: "pro",
		Address: netip.MustParseAddr("2001:db8:1:2::3"), Host: "api.example.com", Method: "GET",
		Path: "/v1/x?secret=1", Endpoint: "/v1/*",
		Unit: "tokens", Cost: 2, Quota: 100, Remaining: 1, Status: 429, RetryAfter: 1500 * time.Millisecond,
		Duration: 1100 * time.Microsecond, Source: ratelimit.FromRemembered,
		Also: []string{"other", `k"1`, "third", `k\2`}, Audit: auditAll,
	})
	history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted, Cost: 3,
		Duration: time.Microsecond, User: "anna", Audit: auditAll, CostPending: []bool{false, true},
		Charged: hits("", 3, "rule/tokens/per_month money", 500)})
	history.SetCost(w, &history.RealCost{Time: baseTime, User: "anna", Prefix: "rule/tokens/per_month",
		Unit: "money", Units: 720})
	history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted, Prefix: "p", Cost: 1,
		Charged: hits("p", 1)})
	history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted, Prefix: "p", Cost: 1,
		Quota: 5, Source: ratelimit.FromLease})
	history.Add(w, &history.Record{Time: baseTime, Prefix: "p", Cost: 1, Quota: 5})
	history.Add(w, &history.Record{Time: baseTime.Add(time.Hour), Outcome: outcome.Rejected,
		User: "anna", KeyID: 7, Status: 401})
	flush(t, w)
	golden.Replay(t, "testdata/written.txt", d.Replay)
	if got, want := w.Stats(), (history.Stats{Written: 2}); got != want {
		t.Errorf("Stats: got %+v, want %+v", got, want)
	}
}
