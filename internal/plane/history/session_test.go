package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// Settings of the database, such as TimeZone and DateStyle, have no effect on days, texts and times.
func TestDatabaseSettingsChangeNothing(t *testing.T) {
	d := newTestDB(t)
	for _, setting := range []string{
		"TimeZone = 'Pacific/Auckland'",
		"DateStyle = 'German'",
		"IntervalStyle = 'iso_8601'",
		"default_transaction_isolation = 'serializable'",
		"extra_float_digits = '-5'",
		"array_nulls = off",
		"standard_conforming_strings = off",
		"backslash_quote = off",
	} {
		quoted := strings.ReplaceAll(setting, "'", "''")
		d.Exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET " + quoted +
			"', current_database()); END $$")
	}
	d.DB = sqltest.Connect(t, d.DSN)
	db := drivers.All["pgwire"](t, d.DSN)
	defer db.Close()
	w := d.newWriterOn(db,
		history.Settings{Retention: []option.Retention{{What: "audit", Keep: 36 * time.Hour}}})
	year := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, at := range []time.Time{year.Add(-time.Microsecond), year,
		time.Date(2028, 2, 29, 12, 0, 0, 0, time.UTC)} {
		history.Add(w, &history.Record{Time: at, Outcome: outcome.Limited, Path: `/\a'"{},NULL`,
			Also: []string{"NULL", `a\"b'`}, User: fmt.Sprint("u", i), Cost: 1, Audit: auditAll})
	}
	flush(t, w)
	const days = `SELECT string_agg(tableoid::regclass || ' ' || (time AT TIME ZONE 'UTC')::date ||
		' ' || path || ' ' || also::text, ', ' ORDER BY time) FROM rate_limit_audit`
	check.Equal(t, "the days", d.Query(days), strings.Join([]string{
		`rate_limit_audit_20261231 31.12.2026 /\a'"{},NULL {"NULL","a\\\"b'"}`,
		`rate_limit_audit_20270101 01.01.2027 /\a'"{},NULL {"NULL","a\\\"b'"}`,
		`rate_limit_audit_20280229 29.02.2028 /\a'"{},NULL {"NULL","a\\\"b'"}`,
	}, ", "))
	check.Equal(t, "new partitions", d.Query("SELECT count(*) FROM rate_limit_upkeep("+
		"'2027-01-02 12:00Z') WHERE what = 'made'"), "24")
	check.Equal(t, "dropped partitions", d.Query("SELECT name FROM rate_limit_drop_expired("+
		"'2027-01-02 12:00Z')"), "public.rate_limit_audit_20261231")
	check.Equal(t, "the days of the metrics",
		d.Query("SELECT string_agg((time AT TIME ZONE 'UTC')::text, ' ' ORDER BY time) FROM "+
			"rate_limit_metrics WHERE granularity = 'day'"),
		"31.12.2026 00:00:00 01.01.2027 00:00:00 29.02.2028 00:00:00")
}

// A Writer that owns the tables, and has a clock that is years ahead, deletes nothing, because the upkeep
// uses the clock of the database.
func TestWrongClockDeletesNothing(t *testing.T) {
	d := newTestDB(t)
	exact := d.newWriter(history.Settings{})
	history.Add(exact, &history.Record{Time: time.Now(), Outcome: outcome.Admitted, User: "anna",
		Audit: auditAll})
	flush(t, exact)
	ahead := d.newWriter(
		history.Settings{Node: "n2", Now: func() time.Time { return time.Now().AddDate(20, 0, 0) }})
	history.Add(ahead, &history.Record{Time: time.Now().AddDate(20, 0, 0), Outcome: outcome.Admitted,
		User: "anna", Audit: auditAll})
	flush(t, ahead)
	if err := history.RunUpkeep(ahead); err != nil {
		t.Fatal(err)
	}
	check.Equal(t, "rows", d.Query("SELECT count(*) FROM rate_limit_audit"), "2")
	for _, granularity := range []string{"minute", "day"} {
		check.Equal(t, "metrics by "+granularity,
			d.Query("SELECT count(*) FROM rate_limit_metrics WHERE granularity = '"+granularity+"'"), "2")
	}
	check.Equal(t, "partitions ahead",
		d.Query("SELECT count(*) FROM rate_limit_partitions() WHERE begins > now() AND begins < now() + "+
			"interval '7 days'"), "7")
}
