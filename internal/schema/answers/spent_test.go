package answers_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// spentRows adds rows of two months to the ledger: org with the teams red and blue, and two people without
// one. dan's row is a correction.
const spentRows = `SELECT rate_limit_ledger_upkeep((now() AT TIME ZONE 'UTC')::date);
INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, money, remainder, search,
		audio_input, estimated_money, kind, charges)
	SELECT (now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), u, a::text[], m, c, r, s, 0, e, k, '[]'
	FROM (VALUES ('ann', '{red,org}', 'm-1', 3000000, -1, 2, NULL, 'charge'),
		('bob', '{blue,org}', 'm-2', 2000000, NULL, NULL, 500000.25, 'charge'),
		('org', '{}', 'm-1', 1000000, NULL, NULL, NULL, 'charge'),
		('cat', '{}', 'n', NULL, NULL, 1, NULL, 'charge'),
		('dan', '{}', 'm-1', -500000, NULL, NULL, NULL, 'correction'),
		(NULL, '{}', NULL, 4000000, NULL, NULL, NULL, 'charge')) v(u, a, m, c, r, s, e, k)`

// What was spent is listed for organizations, teams, persons and models, each with the largest names and
// all others, and the lists of persons and of models add up to all.
func TestSpentMoneyIsListedByWhoAndModel(t *testing.T) {
	s := sqltest.Open(t, schema.File)
	s.Exec(spentRows)
	s.Expect(`SELECT concat_ws(' ', list, name, others, requests, today, this_month, month_before, estimated,
			corrected) FROM rate_limit_spent(3)`, `all 5 9.499999999 9.499999999 0.500000250 -0.500000000
model 1 4.000000000 4.000000000
model m-1 2 3.499999999 3.499999999 -0.500000000
model m-2 1 2.000000000 2.000000000 0.500000250
model 1 1
organization org 3 5.999999999 5.999999999 0.500000250
person 1 4.000000000 4.000000000
person ann 1 2.999999999 2.999999999
person bob 1 2.000000000 2.000000000 0.500000250
person 3 2 0.500000000 0.500000000 -0.500000000
team red 1 2.999999999 2.999999999
team blue 1 2.000000000 2.000000000 0.500000250`)
}

// Corrections of a day that have everything in common are one row.
func TestCorrectionsAreListedByWhoWhyAndWhat(t *testing.T) {
	s := sqltest.Open(t, schema.File)
	s.Exec(`INSERT INTO rate_limit_ledger (day, id, time, model, money, remainder, charges, kind, corrects,
			corrects_time, corrected_by, reason, lines)
		SELECT (now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now() - i * interval '1 s', 'm', -i, -1,
			'[]', 'correction', gen_random_uuid(), '2026-10-31 23:00Z', 'ann', 'typo ' || i % 2,
			'[{"model": "n", "money": 0.25}, {"model": "o", "money": 0}]' FROM generate_series(1, 3) i`)
	s.Expect(`SELECT at < now(), corrected_by, reason, model, month, requests, money, total
		FROM rate_limit_corrections(3)`, `t ann typo 1 m 2026-10-01 00:00:00+00 2 -0.000004002 4
t ann typo 1 n 2026-10-01 00:00:00+00 2 0.000000500 4
t ann typo 0 m 2026-10-01 00:00:00+00 1 -0.000002001 4`)
}

var (
	manyRows  = flag.Int("spent-rows", 20_000, "the rows of the ledger of TestSpentMoneyOfManyRows")
	manyUsers = flag.Int("spent-users", 1000, "the users of these rows")
)

// manyRowsSQL adds rows of 50 days to the ledger: of users in 100 teams, 10 departments and an organization.
const manyRowsSQL = `DO $$ DECLARE d date := now() AT TIME ZONE 'UTC'; BEGIN
	FOR i IN 0..49 LOOP
		IF to_regclass('rate_limit_ledger_' || to_char(d - i, 'YYYYMMDD')) IS NULL THEN
			EXECUTE format('CREATE TABLE rate_limit_ledger_%%s PARTITION OF rate_limit_ledger
				(PRIMARY KEY (id)) FOR VALUES FROM (%%L) TO (%%L)', to_char(d - i, 'YYYYMMDD'), d - i,
				d - i + 1);
		END IF;
	END LOOP;
END $$;
INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, input, output, money, charges)
	SELECT d, gen_random_uuid(), d::timestamp AT TIME ZONE 'UTC' + i %% 86400 * interval '1 s',
		'u' || i %% %d, ARRAY['team' || i %% 100, 'department' || i %% 10, 'org'], 'm' || i %% 3, i, i, i,
		jsonb_build_array(jsonb_build_object('prefix', 'rule/r/l', 'key', 'org', 'unit', 'money', 'units', i))
	FROM (SELECT (now() AT TIME ZONE 'UTC')::date - i %% 50 AS d, i FROM generate_series(1, %d) i) r`

// What many rows have spent, and the invoice of all, are the same from totals as from rows. The log has the
// time that each takes.
func TestSpentMoneyOfManyRows(t *testing.T) {
	s := sqltest.Open(t, schema.File)
	s.Exec(fmt.Sprintf(manyRowsSQL, *manyUsers, *manyRows))
	for s.Query("SELECT rate_limit_totals_upkeep()") == "t" {
	}
	s.Exec("ANALYZE")
	now := s.Query("SELECT now()")
	queries := []string{"SELECT * FROM rate_limit_spent()", fmt.Sprintf("SELECT * FROM rate_limit_invoice("+
		"'org', timestamptz '%s' - interval '31 days', '%[1]s')", now)}
	var got []string
	for _, query := range queries {
		start := time.Now()
		got = append(got, s.Query(query))
		t.Logf("%v from totals: %s", time.Since(start), query)
	}
	s.Exec("UPDATE rate_limit_ledger_days SET summed = false")
	for n, query := range queries {
		start := time.Now()
		check.Equal(t, query, got[n], s.Query(query))
		t.Logf("%v from rows: %s", time.Since(start), query)
	}
}
