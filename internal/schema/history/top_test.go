package history_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

func TestTranscripts(t *testing.T) { sqltest.ReplayTranscripts(t) }

// For a period with many rows, rate_limit_top reads only a sample of the pages, and estimates the sums. The
// query top returns whether the sums of all and of refused requests are about right, whether the first is
// exact, and the percentage of the pages that was read.
func TestTopSendersOfManyRowsAreEstimated(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(`SELECT rate_limit_upkeep();
		INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, key, node)
			SELECT date_trunc('day', now(), 'UTC'), 1, 1,
				CASE i % 4 WHEN 0 THEN 'limited' ELSE 'admitted' END, 'web', i % 2, 'edge'
				FROM generate_series(1, 40000) i;
		ANALYZE rate_limit_audit`)
	const top = "SELECT sum(requests) BETWEEN 36000 AND 44000, sum(refused) BETWEEN 9000 AND 11000, " +
		"sum(requests) = 40000, max(percent_read) FROM rate_limit_top('-infinity', 'infinity', max_rows => "
	s.Expect(top+"NULL)", "t t t -")
	s.Expect(top+"50000)", "t t t -")
	s.Expect(top+"8000)", "t t f 20.00")
}
