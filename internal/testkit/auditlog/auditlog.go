// Package auditlog fills the audit log and the ledger for tests of their archive.
package auditlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Fill creates the partition of a day, as writers do, and adds rows with all kinds of values: NULL, the
// limits of each type, empty and long texts, several scripts, addresses and networks of both families, and
// arrays.
func Fill(t testing.TB, conn *pgx.Conn, day time.Time, rows int) {
	t.Helper()
	run(t, conn, "SELECT rate_limit_make_partition($1::date)", day)
	run(t, conn, fill, day, rows)
}

// MakeLedgerDay creates the partition of a day of the ledger, as upkeep does.
func MakeLedgerDay(t testing.TB, conn *pgx.Conn, day time.Time) {
	t.Helper()
	run(t, conn, fmt.Sprintf("CREATE TABLE IF NOT EXISTS rate_limit_ledger_%s PARTITION OF "+
		"rate_limit_ledger (PRIMARY KEY (id)) FOR VALUES FROM ('%s') TO ('%s')", day.Format("20060102"),
		day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
}

// FillLedger creates the partition of a day, and adds rows of all kinds, some with two lines.
func FillLedger(t testing.TB, conn *pgx.Conn, day time.Time, rows int) {
	t.Helper()
	MakeLedgerDay(t, conn, day)
	run(t, conn, fillLedger, day, rows)
}

func run(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// fill inserts $2 rows of the day $1.
const fill = `INSERT INTO rate_limit_audit
SELECT $1::timestamptz + (i::bigint * 7919 % $2) * (interval '1 day' / $2) + i % 1000 * interval '1 us',
	1 + i % 5, CASE WHEN i % 10 = 0 THEN 1000 ELSE 1 END,
	CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN 9223372036854775807 ELSE 1000 END,
	CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN -9223372036854775808 ELSE i % 1000 END,
	CASE WHEN i % 3 = 0 THEN i END, CASE WHEN i % 5 = 0 THEN 1000 * i END, (i * 31) % 5000,
	(ARRAY[1, 100, 0.1, 'Infinity', '-0', 1e-300, '-Infinity', 1e300]::float8[])[1 + i % 8],
	CASE i % 3 WHEN 0 THEN 429 WHEN 1 THEN -2147483648 END, i % 11 = 0,
	(ARRAY['admitted', 'limited', 'blocked', 'rejected', 'overloaded', 'failed'])[1 + i % 6],
	CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'no_quota' END, CASE WHEN i % 7 = 0 THEN 'gpt-5' END,
	CASE i % 3 WHEN 0 THEN '' WHEN 1 THEN 'login' ELSE U&'rule/frei-f\00FCr-alle' END,
	CASE WHEN i % 2 = 0 THEN 'hour' END, md5(i::text), CASE WHEN i % 4 > 0 THEN 'user-' || i % 977 END, CASE
		WHEN i % 4 > 0 THEN 'free' END,
	CASE i % 7 WHEN 0 THEN NULL WHEN 1 THEN '192.0.2.1' WHEN 2 THEN '2001:db8::1' WHEN 3 THEN '192.0.2.0/24'
		WHEN 4 THEN '2001:db8::/56'
		WHEN 5 THEN '::ffff:192.0.2.9' ELSE '203.0.113.77/8' END::inet,
	CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN 'example.com'
		ELSE U&'\043F\0440\0438\043C\0435\0440.\0440\0444' END, (ARRAY['GET', 'POST', NULL])[1 + i % 3],
	'/' || repeat(U&'\00E9\20AC\+01F600"\\', i % 41) || i, 'node-' || i % 3,
	CASE WHEN i % 2 = 0 THEN 'eu' END,
	CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN '{}' WHEN 2 THEN ARRAY['login', '192.0.2.1'] WHEN 3
		THEN ARRAY['', NULL, 'x,"y"', '{}'] ELSE ARRAY['one'] END
FROM generate_series(1, $2::int) i`

// fillLedger inserts $2 requests and corrections of the day $1.
const fillLedger = `INSERT INTO rate_limit_ledger (day, id, time, user_id, key_id, ancestors, model, input,
	cache_read, cache_write, output, money, remainder, charges, kind, cache_write_1h, audio_input,
	audio_cache_read, audio_output, image_input, image_output, search, estimated_input, estimated_output,
	estimated_money, tier, answered, price, price_valid, lines, corrects, corrects_time, corrected_by, reason)
SELECT $1::date, gen_random_uuid(), $1::timestamptz + i * (interval '25 h' / $2), CASE WHEN i % 5 > 0
	THEN 'user-' || i % 977 END, CASE WHEN i % 3 = 0 THEN i END, CASE i % 3 WHEN 0 THEN '{}'
	WHEN 1 THEN '{team,org}' ELSE '{"",org}' END::text[],
	(ARRAY['gpt-5', U&'\043C\043E\0434\0435\043B\044C', NULL])[1 + i % 3], CASE WHEN i % 7 > 0 THEN i END,
	i % 11, i % 12, i % 13, CASE i % 9 WHEN 0 THEN NULL WHEN 1 THEN 9007199254740993
		ELSE (1 + i * 7919 % 1000000) * sign END, CASE WHEN i % 2 = 0 THEN -(i % 1000) END,
	jsonb_build_array(jsonb_build_object('prefix', 'rule/budget/month', 'key', 'org', 'durable', true, 'unit',
		(ARRAY['money', 'tokens'])[1 + i % 2], 'units', i + 0.125)), kind,
	i % 14, i % 15, i % 16, i % 17, i % 18, i % 19, CASE WHEN i % 20 = 0 THEN 1 END, i % 2, i % 3,
	CASE WHEN i % 4 = 0 THEN i * 0.125 END, CASE WHEN i % 4 = 0 THEN 'batch' END,
	CASE WHEN i % 5 = 0 THEN 'gpt-5-2026' END, CASE WHEN i % 6 = 0 THEN 'gpt-*' END,
	CASE WHEN i % 6 = 0 THEN tstzrange('2026-01-01Z', NULL) END,
	CASE WHEN i % 6 = 0 THEN jsonb_build_array(jsonb_build_object('model', 'gpt-5-mini', 'input', i,
		'money', (i + 0.125) * sign)) END,
	CASE WHEN sign < 0 THEN gen_random_uuid() END, CASE WHEN sign < 0 THEN $1 - interval '1 day' END,
	CASE WHEN sign < 0 THEN 'ann' END, CASE WHEN sign < 0 THEN 'a wrong price' END
FROM generate_series(1, $2::int) i, LATERAL (SELECT CASE i % 10 WHEN 3 THEN -1 ELSE 1 END AS sign,
	CASE i % 10 WHEN 3 THEN 'correction' ELSE 'charge' END AS kind) k`
