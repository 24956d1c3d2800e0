package history_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
)

// Settings of the database, such as TimeZone and DateStyle, have no effect on days, texts and times.
func TestSettingsOfADatabaseChangeNothing(t *testing.T) {
	for name, open := range drivers.All {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			for _, setting := range []string{
				"TimeZone = 'Pacific/Auckland'", "DateStyle = 'German'", "IntervalStyle = " +
					"'iso_8601'", "default_transaction_isolation = 'serializable'",
				"extra_float_digits = '-5'",
				"array_nulls = off", "standard_conforming_strings = off", "backslash_quote = off",
			} {
				s.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET " + strings.ReplaceAll(setting, "'",
					"''") + "', current_database()); END $$")
			}
			s.pool.Reset()
			db := open(t, s.dsn)
			defer db.Close()
			w := s.writerOn(db,
				history.Settings{Retention: []settings.Retention{{What: "audit", Keep: 36 * time.Hour}}})
			year := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
			for i, at := range []time.Time{year.Add(-time.Microsecond), year,
				time.Date(2028, 2, 29, 12, 0, 0, 0, time.UTC)} {
				history.Add(w, &history.Record{Time: at, Outcome: history.Limited, Path: `/\a'"{},NULL`,
					Also: []string{"NULL", `a\"b'`}, User: fmt.Sprint("u", i), Cost: 1, Audit: auditAll})
			}
			flush(t, w)
			const days = `SELECT string_agg(tableoid::regclass || ' ' || (time AT TIME ZONE 'UTC')::date ||
				' ' || path || ' ' || also::text, ', ' ORDER BY time) FROM rate_limit_audit`
			const text = ` /\a'"{},NULL {"NULL",a\\"b'}`
			row := func(day, date string) string {
				return "rate_limit_audit_" + day + " " + date +
					strings.ReplaceAll(text, `a\\"b'`, `"a\\\"b'"`)
			}
			same(t, "the days", s.text(days), row("20261231", "31.12.2026")+", "+row("20270101",
				"01.01.2027")+", "+row("20280229", "29.02.2028"))
			report, err := history.Upkeep(context.Background(), db, year.Add(36*time.Hour))
			if err != nil || len(report.Made) != 3*8 ||
				strings.Join(report.Dropped, " ") != "public.rate_limit_audit_20261231" {
				t.Errorf("upkeep: %+v, %v", report, err)
			}
			same(t, "the days of the metrics",
				s.text("SELECT string_agg((time AT TIME ZONE 'UTC')::text, ' ' ORDER BY time) FROM "+
					"rate_limit_metrics WHERE granularity = 'day'"),
				"31.12.2026 00:00:00 01.01.2027 00:00:00 29.02.2028 00:00:00")
		})
	}
}

// A proxy with a clock years ahead uses the clock of the database for upkeep, even as the owner of the
// tables.
func TestAWrongClockDeletesNothing(t *testing.T) {
	s := newSite(t)
	right := s.writer(history.Settings{})
	history.Add(right, &history.Record{Time: time.Now(), Outcome: history.Allowed, User: "anna",
		Audit: auditAll})
	flush(t, right)
	wrong := s.writer(
		history.Settings{Node: "n2", Now: func() time.Time { return time.Now().AddDate(20, 0, 0) }})
	history.Add(wrong, &history.Record{Time: time.Now().AddDate(20, 0, 0), Outcome: history.Allowed,
		User: "anna", Audit: auditAll})
	flush(t, wrong)
	if err := history.KeepUp(wrong); err != nil {
		t.Fatal(err)
	}
	same(t, "rows, minutes and days",
		s.text("SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT count(*) FROM rate_limit_metrics "+
			"WHERE granularity = 'minute'), (SELECT count(*) FROM rate_limit_metrics WHERE "+
			"granularity = 'day')"), "2 2 2")
	same(t, "partitions ahead",
		s.text("SELECT count(*) FROM rate_limit_partitions() WHERE begins > now() AND begins < now() + "+
			"interval '7 days'"), "7")
}

// Of a hundred proxies, one runs the upkeep in each interval.
func TestOneOfManyWritersKeepsUp(t *testing.T) {
	s := newSite(t)
	const ahead = "SELECT count(*) FROM rate_limit_partitions() WHERE begins > now()"
	again := func(node, want string) {
		t.Helper()
		w := s.writer(history.Settings{Node: node})
		flush(t, w)
		s.exec("DO $$ DECLARE p text; BEGIN FOR p IN SELECT name FROM rate_limit_partitions() " +
			"WHERE begins > now() LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$")
		if err := history.KeepUp(w); err != nil {
			t.Fatal(err)
		}
		same(t, "partitions ahead after "+node, s.text(ahead), want)
	}
	again("n1", "7")
	again("n2", "0")
	again("n3", "0")
	if report, err := history.Upkeep(context.Background(), s.db(), time.Time{}); err != nil || report.Busy ||
		len(report.Made) != 7 {
		t.Errorf("upkeep by hand: %+v, %v", report, err)
	}
	// the clock of the server may have been wrong
	for _, last := range []string{"now() - interval '1 min'", "now() + interval '1 day'"} {
		s.exec("UPDATE rate_limit_retention SET upkeep_at = " + last)
		again(last, "7")
	}
}
