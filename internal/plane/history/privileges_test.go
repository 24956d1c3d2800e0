package history_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// In a database of its own, the role of a proxy can write, lengthen a retention and run the upkeep. It cannot
// shorten a retention, and reports the statement with which an administrator can.
func TestProxyMayWriteHistoryAndNotShortenIt(t *testing.T) {
	d := newTestDB(t)
	if err := history.Migrate(context.Background(), d.openDB()); err != nil {
		t.Fatal(err)
	}
	d.exec("REVOKE CREATE ON SCHEMA public FROM public")
	role := "h_" + d.query("SELECT current_database()")
	d.exec("CREATE ROLE " + role)
	t.Cleanup(func() { d.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	d.exec("SELECT rate_limit_grant('" + role + "', 'proxy')")

	proxy := openTestDB(t, d.dsn+"&options=-c%20role%3D"+role)
	w := proxy.newWriter(
		history.Settings{Retention: []option.Retention{{What: "metrics_day", Keep: 3000 * 24 * time.Hour},
			{What: "audit", Keep: 48 * time.Hour}}})
	history.Add(w, &history.Record{Time: time.Now(), Outcome: outcome.Limited, Prefix: "p", User: "anna",
		Status: 429, Audit: auditAll})
	flush(t, w)
	for _, want := range []string{"0", "1"} { // the second upkeep is within the pause, and does nothing
		d.exec("SELECT rate_limit_make_partition('2020-01-01')")
		if err := history.RunUpkeep(w); err != nil {
			t.Errorf("Upkeep: got the error %v, want none", err)
		}
		check.Equal(t, "expired partitions",
			d.query("SELECT count(*) FROM rate_limit_partitions() WHERE begins < '2021-01-01'"), want)
	}
	check.Equal(t, "rows", d.query("SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT count(*) FROM "+
		"rate_limit_metrics WHERE user_id = 'anna')"), "1 3")
	check.Equal(t, "retention",
		d.query("SELECT string_agg(what || ' ' || keep, ', ' ORDER BY what) FROM rate_limit_retention WHERE "+
			"what IN ('audit', 'metrics_day')"), "audit 90 days, metrics_day 3000 days")
	check.Equal(t, "reports", strings.Join(proxy.reportedErrors(), "\n"),
		"the retention of the history: audit is kept for 90 days: the role "+role+
			" may not shorten that; an administrator can, with UPDATE rate_limit_retention "+
			"SET keep = '2 days' "+
			"WHERE what = 'audit'")
}
