package answers_test

import (
	_ "embed"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

var noticeCounters = flag.Int("notice-counters", 12_000,
	"the counters of TestNoticesAreFoundAmongManyCounters")

// countersSQL adds COUNTERS counters of a limit, and a notice for a third of them.
//
//go:embed testdata/counters.sql
var countersSQL string

// The search reads the counters of a limit in slices, and finds what is in each of them. A third has a
// notice, and gets no second one. The log has how long a search takes, and all if there is one every 5
// seconds.
func TestNoticesAreFoundAmongManyCounters(t *testing.T) {
	s := sqltest.New(t)
	s.Exec(strings.ReplaceAll(countersSQL, "COUNTERS", strconv.Itoa(*noticeCounters)))
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
