package store_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
)

// Of twenty proxies, one reports and counts what a killed one held.
func TestOneProxyReportsWhatKilledOneHeld(t *testing.T) {
	dsn := cluster.Open(t, schema.File, `INSERT INTO rate_limit_processes VALUES (1, now() - interval '9 s');
		INSERT INTO rate_limit_durable (prefix, key, held, expires_at)
			VALUES ('rule/r/l', 'ann', '{{1,100}}', now() + interval '1 h')`)
	var reports atomic.Int64
	var stores []*store.Store
	for i := range 20 {
		s, err := store.Open(drivers.All["pgwire"](t, dsn), engine.Options{CleanupProbability: -1,
			OnError: func(err error) {
				if strings.Contains(err.Error(), "at most 100 units of rule/r/l.") {
					reports.Add(1)
				} else {
					t.Error(err)
				}
			}}, &registry.Node{Name: fmt.Sprint(i), Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Prepare()
		stores = append(stores, s)
	}
	rows := func(condition string) bool {
		return cluster.Query[bool](t, dsn, "SELECT EXISTS (SELECT FROM rate_limit_lost WHERE "+condition+")")
	}
	await.Within(t, time.Minute, "the units", func() bool { return rows("units <> '{}'") })
	cluster.Execute(t, dsn, "UPDATE rate_limit_lost SET found_at = found_at - interval '11 s'")
	await.Within(t, time.Minute, "the end", func() bool { return rows("reported_at IS NOT NULL") })
	counted := func() (sum int64) {
		for _, s := range stores {
			sum += s.Stats()[engine.LostUnits]
		}
		return sum
	}
	await.Within(t, time.Minute, "the metric", func() bool { return counted() == 100 })
	time.Sleep(3 * time.Second)
	if n := reports.Load(); n != 1 || counted() != 100 {
		t.Errorf("%d proxies report %d units, want one that reports 100", n, counted())
	}
}
