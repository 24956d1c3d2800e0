package tables_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// What a killed process held is reported once, as it was before the counters forgot it. A process that lives
// ends its session within 10 seconds, and one that held nothing is not reported.
func TestKilledProcessIsReportedOnce(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(`INSERT INTO rate_limit_processes SELECT p, now() + interval '1 s' * ago FROM (VALUES
			(1, -9), (2, -1), (3, -9), (4, -9)) v(p, ago);
		INSERT INTO rate_limit_processes VALUES (5, '-infinity');
		INSERT INTO rate_limit_durable (prefix, key, held, expires_at) VALUES
			('rule/r/l', 'ann', '{{1,100},{2,10},{3,1000},{5,7}}', now()),
			('rule/r/l', 'bob', '{{1,20}}', now()), ('rule/r/l', 'eve', NULL, now());
		INSERT INTO rate_limit_ephemeral (prefix, key, held, expires_at)
			VALUES ('zone', 'k', '{{1,3}}', now())`)
	const upkeep = "SELECT units, summary LIKE '%may not be charged: they held at most 120 units of " +
		"rule/r/l, 3 units of zone.' FROM rate_limit_lost_upkeep()"
	const reported = "SELECT count(*) FROM rate_limit_state WHERE state = 'lost'"
	s.Expect(upkeep, "")
	s.Exec(`UPDATE rate_limit_durable SET held = NULL;
		UPDATE rate_limit_processes SET seen = '-infinity' WHERE process = 3`)
	s.Expect(upkeep, "")
	s.Expect(reported, "0")
	s.Exec("UPDATE rate_limit_lost SET found_at = found_at - interval '11 s'")
	s.Expect(upkeep, "123 t")
	s.Expect(upkeep, "")
	s.Expect(reported, "1")
	s.Expect("SELECT string_agg(process::text, ',' ORDER BY process) FROM rate_limit_processes "+
		"WHERE seen = '-infinity'", "1,3,4,5")
	s.Exec("UPDATE rate_limit_lost SET reported_at = reported_at - interval '1 day'")
	s.Expect(reported, "0")
}
