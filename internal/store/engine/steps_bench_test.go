package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// BenchmarkSteps measures the SQL step of each algorithm on rows that exist: an iteration decides 200 keys in one
// statement, and ns/key is of the fastest.
func BenchmarkSteps(b *testing.B) {
	s := newSite(b)
	s.exec(engine.TableSQL)
	o := without
	o.DisableMigration = true
	store := newStore(b, drivers.All["pgxdb"](b, s.dsn), o)
	for _, l := range conformance.Limits("", 20) {
		if l.Algorithm != ratelimit.SlidingLog { // its full row is measured
			l.Events = 1e9
		}
		b.Run(l.Prefix, func(b *testing.B) {
			calls := make([]*batch.Call, 200)
			fastest := time.Hour
			for range b.N {
				for i := range calls {
					calls[i] = callFor(false, ratelimit.Hit{Limit: l, Key: fmt.Sprint("key", i), Cost: 1})
				}
				begun := time.Now()
				store.DecideBatch(calls)
				fastest = min(fastest, time.Since(begun))
			}
			b.ReportMetric(float64(fastest.Nanoseconds())/float64(len(calls)), "ns/key")
		})
	}
}
