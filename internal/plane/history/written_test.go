package history_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
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
		Hits: hits("", 3, "rule/tokens/per_month money", 500)})
	history.SetCost(w, &history.RealCost{Time: baseTime, User: "anna", Prefix: "rule/tokens/per_month",
		Unit: "money", Units: 720})
	history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted, Prefix: "p", Cost: 1,
		Hits: hits("p", 1)})
	history.Add(w, &history.Record{Time: baseTime, Outcome: outcome.Admitted, Prefix: "p", Cost: 1,
		Quota: 5, Source: ratelimit.FromLease})
	history.Add(w, &history.Record{Time: baseTime, Prefix: "p", Cost: 1, Quota: 5})
	history.Add(w, &history.Record{Time: baseTime.Add(time.Hour), Outcome: outcome.Rejected,
		User: "anna", KeyID: 7, Status: 401})
	flush(t, w)
	check.Equal(t, "audit", d.Query(`SELECT regexp_replace(row_to_json(a)::text, '"id":[1-9][0-9]*',
		'"id":"N"') FROM rate_limit_audit a ORDER BY outcome DESC`),
		`{"time":"2026-11-20T12:30:15.5+00:00","cost":2,"count":1,"quota":100,"remaining":1,"key_id":7,"retry_after_ms":1500,"duration_us":1100,"weight":1,"status":429,"shadow":false,"outcome":"limited","reason":"no_quota","model":"gpt-5","prefix":"rule/api","limit_name":"per_hour","key":"a\"b\\c","user_id":"anna","tier":"pro","address":"2001:db8:1:2::3","host":"api.example.com","method":"GET","path":"/v1/x","node":"n1","region":"eu","also":["other","k\"1","third","k\\2"],"id":"N","unit":"tokens"}
{"time":"2026-11-20T12:30:15.5+00:00","cost":3,"count":1,"quota":null,"remaining":null,"key_id":null,"retry_after_ms":null,"duration_us":1,"weight":1,"status":null,"shadow":false,"outcome":"admitted","reason":null,"model":null,"prefix":"","limit_name":null,"key":null,"user_id":"anna","tier":null,"address":null,"host":null,"method":null,"path":null,"node":"n1","region":"eu","also":null,"id":"N","unit":null}`)
	check.Equal(t, "numbers", d.Query("SELECT count(DISTINCT id) FROM rate_limit_audit"), "2")
	check.Equal(t, "metrics", d.Query(`SELECT time::text, user_id, key_id, prefix, limit_name, unit,
		endpoint, region, requests, admitted, limited, rejected, settled, from_memory,
		from_lease, from_database, durations::text, last_request::text FROM rate_limit_metrics
		WHERE granularity = 'minute' ORDER BY time, prefix COLLATE "C"`),
		`2026-11-20 12:30:00+00 anna 0     eu 1 1 0 0 3 0 0 0 {1} 2026-11-20 12:30:15.5+00
2026-11-20 12:30:00+00  0 p    eu 3 3 0 0 1 0 1 1 {3} 2026-11-20 12:30:15.5+00
2026-11-20 12:30:00+00 anna 7 rule/api per_hour tokens /v1/* eu 1 0 1 0 0 1 0 0 {0,0,0,0,0,0,0,0,0,0,0,0,0,0,1} 2026-11-20 12:30:15.5+00
2026-11-20 12:30:00+00 anna 0 rule/tokens per_month money  eu 0 0 0 0 720 0 0 0 {} 2026-11-20 12:30:15.5+00
2026-11-20 13:30:00+00 anna 7     eu 1 0 0 1 0 0 0 0 {1} 2026-11-20 13:30:15.5+00`)
	check.Equal(t, "hours and days", d.Query(`SELECT granularity, time::text, user_id, key_id,
		sum(requests)::bigint, sum(settled)::bigint FROM rate_limit_metrics
		WHERE granularity <> 'minute' AND user_id = 'anna' GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4`),
		`day 2026-11-20 00:00:00+00 anna 0 1 723
day 2026-11-20 00:00:00+00 anna 7 2 0
hour 2026-11-20 12:00:00+00 anna 0 1 723
hour 2026-11-20 12:00:00+00 anna 7 1 0
hour 2026-11-20 13:00:00+00 anna 7 1 0`)
	const writers = "SELECT node, region, batch, written, dropped FROM rate_limit_writers"
	check.Equal(t, "writers", d.Query(writers), "n1 eu 2 2 0")
	check.Equal(t, "retention", d.Query("SELECT keep::text, set_by FROM rate_limit_retention "+
		"WHERE what = 'audit'"), "30 days n1")
	if got, want := w.Stats(), (history.Stats{Recorded: 2, Written: 2, Batches: 2}); got != want {
		t.Errorf("Stats: got %+v, want %+v", got, want)
	}
}
