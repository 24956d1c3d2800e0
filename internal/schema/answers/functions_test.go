package answers_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

func TestTranscripts(t *testing.T) { sqltest.ReplayTranscripts(t) }

// Postgres inlines rate_limit_counters, so a query for one key uses the index of the counters.
func TestUsageOfKeyUsesIndex(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(`SELECT rate_limit_rule('r', per_minute => 10, per_day => 100);
		INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
			SELECT 'rule/r/per_minute', i, 1, now(), now() + '1 h' FROM generate_series(1, 2000) i;
		ANALYZE`)
	plan := s.Query("EXPLAIN SELECT * FROM rate_limit_used WHERE key = '5'")
	if !strings.Contains(plan, " using rate_limit_ephemeral_pkey") ||
		strings.Contains(plan, "rate_limit_counters") {
		t.Errorf("got the plan\n%s\nwant a scan of rate_limit_ephemeral_pkey, and no function scan", plan)
	}
}
