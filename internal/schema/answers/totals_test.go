package answers_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// ledgerDays is the number of days, up to today, with rows in these tests.
const ledgerDays = 7

// emptyLedger opens all days and deletes what they have.
const emptyLedger = `DO $$ DECLARE d date := now() AT TIME ZONE 'UTC'; BEGIN
	FOR i IN 0..6 LOOP
		PERFORM rate_limit_ledger_upkeep(d - i);
		EXECUTE format('ALTER TABLE rate_limit_ledger_%s DROP CONSTRAINT IF EXISTS day_is_summed',
			to_char(d - i, 'YYYYMMDD'));
	END LOOP;
	TRUNCATE rate_limit_ledger, rate_limit_totals, rate_limit_ledger_days;
END $$`

// drawRow returns SQL that adds a row to the ledger, and the day as an SQL expression.
func drawRow(t *rapid.T) (row, day string) {
	day = fmt.Sprintf("(now() AT TIME ZONE 'UTC')::date - %d", rapid.IntRange(0, ledgerDays-1).Draw(t, "day"))
	ancestors := rapid.SampledFrom([]string{"{}", "{team,org}", "{org}", "{''}"}).Draw(t, "ancestors")
	user := rapid.SampledFrom([]string{"'ann'", "'bob'", "'org'", "NULL"}).Draw(t, "user")
	units, kind := rapid.IntRange(-9, 9).Draw(t, "units"), "correction"
	if units >= 0 {
		kind = "charge"
	}
	return fmt.Sprintf(`INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, input, money,
			charges, kind, corrects_time)
		SELECT d, gen_random_uuid(), d::timestamp AT TIME ZONE 'UTC' + %d * interval '1 h', %s,
			replace('%s', '''''', '""')::text[], %s, %d, nullif(%d, 5),
			'[{"prefix": "rule/r/l2", "unit": "money", "units": 99}, {"prefix": "rule/r/l", "unit": "tokens",
			"units": 99}, {"prefix": "rule/r/l:2", "key": "org", "unit": "money", "units": %[6]d},
			{"prefix": "rule/r/l", "key": "ann", "unit": "money", "units": %[6]d}]', '%[8]s',
			CASE WHEN '%[8]s' <> 'charge' THEN now() - %[9]d * interval '1 h' END
		FROM (SELECT %[7]s AS d) d`, rapid.IntRange(0, 30).Draw(t, "hour"), user,
		ancestors, rapid.SampledFrom([]string{"'m'", "'n'", "NULL"}).Draw(t, "model"), units, units, day,
		kind, rapid.IntRange(0, 2000).Draw(t, "age")), day
}

// checkInvoice compares the sums of a user with those of the rows, from a time until another.
func checkInvoice(t *rapid.T, s *sqltest.DB) {
	user := rapid.SampledFrom([]string{"ann", "bob", "team", "org"}).Draw(t, "who")
	window := fmt.Sprintf(`(SELECT d - %d * interval '1 h' AS a, d + %d * interval '1 h' AS b
		FROM date_trunc('day', now(), 'UTC') d) w`, rapid.IntRange(-24, 170).Draw(t, "from"),
		24*rapid.IntRange(-7, 2).Draw(t, "until"))
	got := s.Query(`SELECT t.model, sum(t.requests), sum(t.input), sum(t.money) FROM ` + window +
		`, rate_limit_totals_of('` + user + `', a, b) t GROUP BY 1 ORDER BY 1`)
	mine := ` FROM ` + window + `, rate_limit_ledger WHERE time >= a AND time < b AND ('` + user +
		`' = user_id OR '` + user + `' = ANY (ancestors))`
	want := s.Query(`SELECT model, count(*) FILTER (WHERE kind = 'charge'), sum(input), sum(money)` + mine +
		` GROUP BY 1 ORDER BY 1`)
	if got != want {
		t.Fatalf("the sums of %s: got\n%s\nwant those of the rows\n%s", user, got, want)
	}
	got = s.Query(`SELECT t.model, sum(t.requests), sum(t.input), sum(t.money) FROM ` + window +
		`, rate_limit_totals_of('` + user + `', a, b, each => true) t GROUP BY 1 ORDER BY 1`)
	if got != want {
		t.Fatalf("the sums of each below %s: got\n%s\nwant those of the rows\n%s", user, got, want)
	}
	got = s.Query(`SELECT sum(t.requests), sum(t.units) FROM ` + window + `, rate_limit_totals_of('` + user +
		`', a, b, 'rule/r/l', 'money') t`)
	want = s.Query(`SELECT CASE WHEN count(*) > 0 THEN count(*) FILTER (WHERE kind = 'charge') END,
		sum((charges -> 2 ->> 'units')::bigint)` + mine)
	if got != want {
		t.Fatalf("the sums of %s on a limit: got %s, want %s", user, got, want)
	}
}

// Whatever is summed, and however late a row comes or its transaction commits, an invoice is the sum of the
// rows. A late row fails once, as where its partition is missing, and then opens its day.
func TestInvoiceIsTheSumOfTheRows(t *testing.T) {
	s := sqltest.Open(t, schema.File)
	late := sqltest.Connect(t, s.DSN)
	add := func(t *rapid.T, s *sqltest.DB) {
		row, day := drawRow(t)
		err := s.Try(row)
		var failure *pgconn.PgError
		if errors.As(err, &failure) && failure.Code == "23514" && s != late {
			s.Exec("SELECT rate_limit_ledger_upkeep(" + day + ")")
			err = s.Try(row)
		}
		if err != nil && s != late {
			t.Fatalf("got %v, want a row", err)
		}
	}
	conformance.Check(t, 60, func(t *rapid.T) {
		_ = late.Try("ROLLBACK")
		cluster.AwaitDay()
		s.Exec(emptyLedger)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { add(t, s) },
			"add in a long transaction": func(t *rapid.T) {
				_ = late.Try("BEGIN") // a warning, where it has begun
				add(t, late)
			},
			"commit": func(*rapid.T) { _ = late.Try("COMMIT") },
			"upkeep": func(t *rapid.T) {
				s.Exec("UPDATE rate_limit_ledger_days SET open_until = '-infinity'")
				for n := rapid.IntRange(1, 20).Draw(t, "times"); n > 0; n-- {
					s.Exec("SELECT rate_limit_totals_upkeep()")
				}
			},
			"forget": func(*rapid.T) {
				_ = late.Try("COMMIT") // else it would wait for that
				s.Exec("SELECT rate_limit_forget_person('bob')")
			},
			"": func(t *rapid.T) { checkInvoice(t, s) },
		})
	})
}
