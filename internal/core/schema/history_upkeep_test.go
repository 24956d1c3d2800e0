package schema_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

const dropped = "SELECT name, coalesce(held_by, 'dropped') FROM rate_limit_drop_expired('2026-11-21 12:00Z')"

// A day's partition is past its retention 90 days after its last moment, and not a second before.
func TestAPartitionGoesWhenItIsNinetyDaysOld(t *testing.T) {
	s := newHistory(t)
	s.exec("SET TimeZone = 'America/New_York'; SELECT rate_limit_make_partition(d::date) FROM " +
		"generate_series(timestamp '2026-08-20', '2026-08-25', '1 day') d;" +
		row("2026-08-22 23:59:59Z"))
	s.want("SELECT string_agg(right(name, 8) || ' ' || state, ', ') FROM rate_limit_expired('2026-11-20 "+
		"23:59:59.999999Z')", "20260820 attached, 20260821 attached")
	s.want("SELECT string_agg(right(name, 8) || ' ' || state, ', ') FROM rate_limit_expired('2026-11-21Z')",
		"20260820 attached, 20260821 attached, 20260822 attached")
	s.want("SELECT right(name, 8), held_by FROM rate_limit_drop_expired('2026-11-20 23:59:59.999999Z')",
		"20260820 -\n20260821 -")
	s.want("SELECT count(*) FROM rate_limit_audit", "1")
	s.want("SELECT right(name, 8), held_by FROM rate_limit_drop_expired('2026-11-21Z')", "20260822 -")
	s.want("SELECT to_regclass('rate_limit_audit_20260822'), count(*) FROM rate_limit_audit", "- 0")

	// Without a row for it, the audit log is kept for ever; and any number of years is a retention.
	s.exec("DELETE FROM rate_limit_retention")
	s.want("SELECT * FROM rate_limit_expired('2096-11-21')", "")
	s.exec("INSERT INTO rate_limit_retention (what, keep) VALUES ('audit', '170000000 years')")
	s.want("SELECT * FROM rate_limit_expired('2096-11-21')", "")
}

// Tables that were detached go too; those that only have a similar name, or belong to somebody
// else, stay.
func TestDetachedPartitionsGoToo(t *testing.T) {
	s := newHistory(t)
	other := "o_" + s.text("SELECT current_database()")
	s.exec(`CREATE TABLE rate_limit_audit_20260101 (); CREATE TABLE rate_limit_audit_20260230_2 (); CREATE TABLE rate_limit_audit_20261301 (); CREATE TABLE rate_limit_audit_2026 ();
		CREATE TABLE rate_limit_audit_20260101_copy (); CREATE TABLE rate_limit_audit_20261120 (); CREATE VIEW rate_limit_audit_20260102 AS SELECT 1;
		CREATE TABLE rate_limit_audit_20260103 (); CREATE ROLE ` + other + `; ALTER TABLE rate_limit_audit_20260103 OWNER TO ` + other)
	t.Cleanup(func() { s.exec("DROP OWNED BY " + other + "; DROP ROLE " + other) })
	s.want(dropped, "public.rate_limit_audit_20260101 dropped\npublic.rate_limit_audit_20260230_2 dropped")
}

// A partition that a reader holds open stays, and so does what a view of somebody needs. The
// others go, and the writers are not held up.
func TestDroppingSkipsWhatIsInUse(t *testing.T) {
	s := newHistory(t)
	s.exec("SELECT rate_limit_make_partition(d::date) FROM generate_series(timestamp '2026-08-01', " +
		"'2026-08-04', '1 day') d;" + row("2026-08-01 10:00Z"))
	reader := &site{t: t, dsn: s.dsn, conn: cluster.Connect(s.t, s.dsn)}
	pid := reader.text("SELECT pg_backend_pid()")
	reader.exec("BEGIN; SELECT * FROM rate_limit_audit_20260801")
	s.exec("CREATE VIEW mine AS SELECT * FROM rate_limit_audit_20260803")
	s.want("SELECT right(name, 8), left(held_by, 32) FROM rate_limit_drop_expired('2026-12-21')",
		"20260801 pid "+pid+"\n20260802 -\n20260803 cannot drop table rate_limit_aud\n20260804 -")

	// A reader of the whole table keeps all of them, and this takes a short time once.
	s.exec("DROP VIEW mine; SELECT rate_limit_make_partition(d::date) FROM generate_series(timestamp " +
		"'2026-07-01', '2026-07-30', '1 day') d")
	reader.exec("COMMIT; BEGIN; LOCK TABLE ONLY rate_limit_audit IN ACCESS SHARE MODE")
	s.want("SELECT DISTINCT held_by FROM rate_limit_drop_expired('2026-12-21')",
		"pid "+pid+" by way of rate_limit_audit")
	s.want("SELECT current_setting('lock_timeout')", "0")
	reader.exec("COMMIT")
	s.want("SELECT count(*) FROM rate_limit_drop_expired('2026-12-21') WHERE held_by IS NULL", "32")
}

// Days are kept for 7 years by default, and writers for 30 days, to the day; a run deletes up to 20,000
// rows.
func TestOldDaysAndWritersAreDeleted(t *testing.T) {
	s := newHistory(t)
	s.exec(`INSERT INTO rate_limit_metrics (granularity, time, user_id, last_request) SELECT 'day', '2019-11-20Z', 'u' || n, '2019-11-20Z' FROM generate_series(1, 20005) n;
		INSERT INTO rate_limit_metrics (granularity, time, user_id, last_request) VALUES ('day', '2019-11-21Z', 'ann', '2019-11-21Z');
		INSERT INTO rate_limit_writers (writer, node, batch, seen) VALUES ('old', 'n', 1, now() - interval '30 days 1 s'), ('young', 'n', 1, now() - interval '29 days 23 h')`)
	const deleted = " WHERE what = 'deleted' AND rows > 0 AND name = 'metrics_day'"
	s.want("SELECT name, rows FROM rate_limit_upkeep('2026-11-20 23:59:59Z')"+deleted, "")
	s.want("SELECT name, rows FROM rate_limit_upkeep('2026-11-21Z')"+deleted, "metrics_day 20000")
	s.want("SELECT name, rows FROM rate_limit_upkeep('2026-11-21Z')"+deleted, "metrics_day 5")
	s.want("SELECT name, rows FROM rate_limit_upkeep('2026-11-21Z')"+deleted, "")
	s.want("SELECT user_id FROM rate_limit_metrics", "ann")
	s.exec("SELECT rate_limit_upkeep()")
	s.want("SELECT writer FROM rate_limit_writers", "young")
}

// One process at a time does the upkeep, and does not wait for a row that a writer holds.
func TestUpkeepWaitsForNobody(t *testing.T) {
	s := newHistory(t)
	s.exec(minuteSQL("2001-11-01 10:00Z", "held", "", []float64{5}) +
		minuteSQL("2001-11-01 10:00Z", "web", "", []float64{5}))
	other := &site{t: t, dsn: s.dsn, conn: cluster.Connect(s.t, s.dsn)}
	other.exec("BEGIN; SELECT * FROM rate_limit_metrics_day WHERE prefix = 'held' FOR UPDATE")
	s.exec("SET lock_timeout = '5 s'")
	s.want("SELECT rows FROM rate_limit_upkeep('2026-11-21') WHERE name = 'metrics_day'", "1")
	other.exec("COMMIT; BEGIN; SELECT rate_limit_upkeep('2026-11-21')")
	s.want("SELECT * FROM rate_limit_upkeep('2026-11-21')", "busy - -")
	s.want("SELECT * FROM rate_limit_drop_expired('2036-11-21')", "")
	other.exec("COMMIT")
	s.want("SELECT count(*) FROM rate_limit_upkeep('2026-11-21') WHERE what = 'busy'", "0")
}

// What another session has locked is left for a later run, and the rest is done.
func TestUpkeepDoesNotWaitForLocks(t *testing.T) {
	s := newHistory(t)
	s.exec(minuteSQL("2001-01-01 10:00Z", "web", "", []float64{5}))
	other := &site{t: t, dsn: s.dsn, conn: cluster.Connect(s.t, s.dsn)}
	other.exec("BEGIN; LOCK TABLE ONLY rate_limit_audit IN SHARE UPDATE EXCLUSIVE MODE")
	s.exec("SET statement_timeout = '60 s'")
	s.want("SELECT * FROM rate_limit_upkeep('2026-11-21') WHERE what <> 'made'",
		"skipped rate_limit_audit -\ndeleted metrics_day 1\ndeleted writers 0")
	other.exec("COMMIT")
	s.want("SELECT what, count(*) FROM rate_limit_upkeep('2026-11-21') GROUP BY 1 ORDER BY 1",
		"deleted 2\nmade 8")
}

// A role that may only run the functions does the upkeep, and can delete nothing before its time.
func TestARoleWithNothingButExecuteDoesTheUpkeep(t *testing.T) {
	s := newHistory(t)
	s.exec("REVOKE CREATE ON SCHEMA public FROM public; SELECT rate_limit_make_partition('2020-01-01'), " +
		"rate_limit_make_partition((now() - interval '50 days')::date);" +
		minuteSQL("2020-01-01 10:00Z", "web", "", []float64{5}))
	role := "r_" + s.text("SELECT current_database()")
	s.exec("CREATE ROLE " + role)
	t.Cleanup(func() { s.exec("RESET ROLE; DROP OWNED BY " + role + "; DROP ROLE " + role) })
	s.exec("SET ROLE " + role)
	for _, forbidden := range []string{"SELECT rate_limit_upkeep()", "SELECT rate_limit_drop_expired()",
		"SELECT rate_limit_expired()",
		"SELECT rate_limit_make_partition('2026-01-01')",
		"SELECT rate_limit_partitions()", "SELECT rate_limit_cutoff('audit', now())",
		"SELECT rate_limit_holders(1)"} {
		if failure := s.fails(forbidden); failure.Code != "42501" {
			t.Errorf("without a GRANT, %s: %s", forbidden, failure.Message)
		}
	}
	s.exec("RESET ROLE; GRANT EXECUTE ON FUNCTION rate_limit_upkeep, rate_limit_drop_expired, " +
		"rate_limit_expired TO " + role + "; SET ROLE " + role)
	s.want("SELECT what, sum(rows) FROM rate_limit_upkeep() GROUP BY 1 ORDER BY 1",
		"deleted 0\nmade -")
	s.want("SELECT name, state FROM rate_limit_expired('9999-01-01')",
		"public.rate_limit_audit_20200101 attached")
	s.want("SELECT * FROM rate_limit_drop_expired('9999-01-01')", "public.rate_limit_audit_20200101 -\n"+
		"public.rate_limit_metrics_minute_20200101 -\npublic.rate_limit_metrics_hour_20200101 -")
	for _, forbidden := range []string{"DELETE FROM rate_limit_metrics", "SELECT * FROM rate_limit_audit",
		"UPDATE rate_limit_retention SET keep = '1 day'", "DROP TABLE rate_limit_audit"} {
		if failure := s.fails(forbidden); failure.Code != "42501" {
			t.Errorf("%s: %s", forbidden, failure.Message)
		}
	}
	s.exec("RESET ROLE")
	s.want("SELECT count(*) FROM rate_limit_partitions()", "9")
}

// The history lies in the first schema of the search_path, its functions find it from anywhere, and
// a caller's own tables do not take its place.
func TestTheHistoryInAnotherSchema(t *testing.T) {
	s := open(t)
	s.exec(`CREATE SCHEMA "a.Tenant"; SET search_path = "a.Tenant";` + schema.History +
		`RESET search_path; CREATE TEMPORARY TABLE rate_limit_metrics (x int); CREATE TEMPORARY TABLE rate_limit_retention (what text)`)
	s.want(`SELECT what, name FROM "a.Tenant".rate_limit_upkeep('2026-11-21') LIMIT 1`,
		`made "a.Tenant".rate_limit_audit_20261121`)
	s.want(`SELECT name, state FROM "a.Tenant".rate_limit_expired('2027-02-20') LIMIT 1`,
		`"a.Tenant".rate_limit_audit_20261121 attached`)
	s.want(`SELECT count(*) FROM "a.Tenant".rate_limit_drop_expired('2027-02-20') WHERE held_by IS NULL AND name ~ 'audit'`, "1")
	s.want("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "0")
}
