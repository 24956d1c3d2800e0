package schema_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// A proxy that wrote its row while the server's clock was ahead is not live until it writes the row again.
func TestProxySeenInFutureIsNotLive(t *testing.T) {
	s := newTestDB(t)
	s.exec("INSERT INTO rate_limit_nodes (node, seen) VALUES ('now', now()), ('soon', now() + '5 s'), " +
		"('later', now() + '2 days'), ('silent', now() - interval '11 s')")
	s.expect("SELECT string_agg(node, ' ' ORDER BY node) FROM rate_limit_proxies WHERE live", "now soon")
	s.expect("SELECT string_agg(node, ' ' ORDER BY node) FROM rate_limit_nodes n WHERE "+schema.NodeIsLive,
		"now soon")
}

// For a period with many rows, rate_limit_top reads only a sample of the pages, and estimates the sums. The
// query top returns whether the sums of all and of refused requests are about right, whether the first is
// exact, and the percentage of the pages that was read.
func TestTopSendersOfManyRowsAreEstimated(t *testing.T) {
	s := newTestDB(t)
	s.exec(`SELECT rate_limit_upkeep();
		INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, key, node)
			SELECT date_trunc('day', now(), 'UTC'), 1, 1, CASE i % 4 WHEN 0 THEN 'limited' ELSE 'allowed' END,
				'web', i % 2, 'edge' FROM generate_series(1, 40000) i;
		ANALYZE rate_limit_audit`)
	const top = "SELECT sum(requests) BETWEEN 36000 AND 44000, sum(refused) BETWEEN 9000 AND 11000, " +
		"sum(requests) = 40000, max(percent_read) FROM rate_limit_top('-infinity', 'infinity', max_rows => "
	s.expect(top+"NULL)", "t t t -")
	s.expect(top+"50000)", "t t t -")
	s.expect(top+"8000)", "t t f 20.00")
}

// Postgres inlines rate_limit_counters, so a query for one key uses the index of the counters.
func TestUsageOfKeyUsesIndex(t *testing.T) {
	s := newTestDB(t)
	s.exec(`SELECT rate_limit_rule('r', per_minute => 10, per_day => 100);
		INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
			SELECT 'rule/r/per_minute', i, 1, now(), now() + '1 h' FROM generate_series(1, 2000) i;
		ANALYZE`)
	plan := s.queryText("EXPLAIN SELECT * FROM rate_limit_used WHERE key = '5'")
	if !strings.Contains(plan, " using rate_limit_ephemeral_pkey") ||
		strings.Contains(plan, "rate_limit_counters") {
		t.Errorf("got the plan\n%s\nwant a scan of rate_limit_ephemeral_pkey, and no function scan", plan)
	}
}
