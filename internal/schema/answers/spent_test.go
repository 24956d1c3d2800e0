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
