package answers_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

var noticeCounters = flag.Int("notice-counters", 12_000,
	"the counters of TestNoticesAreFoundAmongManyCounters")

// The search reads the counters of a limit in slices, and finds what is in each of them. A third has a
// notice, and gets no second one. The log has how long a search takes, and all if there is one every 5
// seconds.
func TestNoticesAreFoundAmongManyCounters(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(fmt.Sprintf(`SELECT rate_limit_rule('r',
			limits => '{l=50 tokens/1mo calendar,m=50 tokens/1d calendar}', notify => '{80}');
		INSERT INTO rate_limit_durable (prefix, key, count, window_start, expires_at)
			SELECT 'rule/r/l', 'u' || i, CASE WHEN i %% 1000 = 0 OR i %% 3 = 1 THEN 45 ELSE 39 END, m,
				m + interval '1 month'
			FROM generate_series(1, %[1]d) i, date_trunc('month', now(), 'UTC') m;
		INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota, resets_at)
			SELECT 'r', 'l', 'u' || i, m, 80, 45, 50, m + interval '1 month'
			FROM generate_series(1, %[1]d, 3) i, date_trunc('month', now(), 'UTC') m`, *noticeCounters))
	s.Exec("ANALYZE")
	begun, calls := time.Now(), 0
	for place, last := "", ""; calls == 0 || place > last; calls++ { // until it begins again
		last = place
		s.Exec(`UPDATE rate_limit_ledger_retention SET noticed_at = '-infinity';
			SELECT rate_limit_notice_upkeep()`)
		place = s.Query("SELECT noticed_key FROM rate_limit_ledger_retention")
	}
	t.Logf("%d searches of %v each: %v", calls, time.Since(begun)/time.Duration(calls),
		time.Duration(calls)*5*time.Second)
	found := *noticeCounters/1000 + (*noticeCounters+2)/3 - (*noticeCounters/1000+2)/3
	s.Expect("SELECT count(*), count(DISTINCT key) FROM rate_limit_notices WHERE void_at = 'infinity'",
		fmt.Sprint(found, " ", found))
}
