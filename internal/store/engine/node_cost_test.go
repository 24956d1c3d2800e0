package engine_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
)

// proxies is for TestCostOfTheRegistry.
var proxies = flag.Int("proxies", 0, "how many proxies TestCostOfTheRegistry runs for a minute; 0 skips it")

// readyStore is a registry.Store without limits.
type readyStore struct{}

func (readyStore) Prepare()           {}
func (readyStore) Ready() bool        { return true }
func (readyStore) Unavailable() error { return nil }
func (readyStore) SetProxies(int64)   {}
func (readyStore) Tick()              {}
func (readyStore) Local() chain.Local { return chain.Local{} }

// TestCostOfTheRegistry measures what the registry costs a server: WAL and processor time, for rows of about 1 KB.
func TestCostOfTheRegistry(t *testing.T) {
	if *proxies == 0 {
		t.Skip("it measures for a minute: -args -proxies 200")
	}
	const minute = time.Minute
	server := cluster.Private(t, cluster.Options{Config: map[string]string{"checkpoint_timeout": "1h"}})
	dsn := server.DSN("postgres")
	cluster.Execute(t, dsn, engine.TableSQL)
	written := func() int64 {
		return cluster.Query[int64](t, dsn, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
	}
	time.Sleep(10 * time.Second) // what starts with a server
	measure := func() (float64, int64) {
		from, before := processorTime(t, server.DataDir()), written()
		time.Sleep(minute)
		return processorTime(t, server.DataDir()) - from, written() - before
	}
	idleTime, idleWAL := measure()
	totals := func() registry.Totals {
		n := time.Now().UnixMicro()
		var busiest []string
		for i := range 20 {
			busiest = append(busiest, fmt.Sprintf(`"limit %d":[%d,%d]`, i, n%1e6, n%1e4))
		}
		return registry.Totals{Admitted: n, Refused: n, Undecided: n, Local: n, Busiest: "{" + strings.Join(busiest, ",") + "}"}
	}
	db := drivers.All["pgxdb"](t, dsn)
	defer db.Close()
	for i := range *proxies {
		r := registry.New(db, readyStore{}, &registry.Node{Name: fmt.Sprint("proxy ", i), Version: "v0.1.0", Epoch: 1, Totals: totals}, registry.Options{})
		r.SetApplied(1, "1", nil)
		r.Start()
		defer r.End()
	}
	time.Sleep(10 * time.Second)
	seconds, wal := measure()
	t.Logf("%d proxies: %.1f ms of processor time and %.0f bytes of WAL a second, rows of %d bytes, a table of %d kB", *proxies, (seconds-idleTime)/minute.Seconds()*1000,
		float64(wal-idleWAL)/minute.Seconds(), cluster.Query[int](t, dsn, "SELECT max(pg_column_size(n.*)) FROM rate_limit_nodes n"),
		cluster.Query[int](t, dsn, "SELECT (pg_total_relation_size('rate_limit_nodes') / 1024)::int"))
	if n := cluster.Query[int](t, dsn, "SELECT count(*) FROM rate_limit_proxies WHERE live"); n != *proxies {
		t.Errorf("%d proxies are live", n)
	}
}
