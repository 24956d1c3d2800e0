package engine_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Commits that wait for a lost standby leave no sessions behind, and never more than the pool's bound.
func TestLostStandbyLeavesNoSessionsBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it starts a server")
	}
	t.Parallel()
	server := cluster.Private(t, cluster.Options{Config: map[string]string{
		"synchronous_standby_names": "nobody"}})
	admin := server.DSN("postgres")
	cluster.Execute(t, admin, "SET synchronous_commit = off; CREATE TABLE t (i int)")
	for name, open := range drivers.All {
		for _, conns := range []int{2, 8} {
			t.Run(fmt.Sprint(name, " ", conns), func(t *testing.T) {
				sessions := func() int {
					return cluster.Query[int](t, admin, "SELECT count(*)::int FROM pg_stat_activity "+
						"WHERE application_name = '"+name+"'")
				}
				db := open(t, fmt.Sprintf("%s&application_name=%s&pool_max_conns=%d", admin, name, conns))
				defer db.Close()
				for range 4 {
					var wg sync.WaitGroup
					for range conns {
						wg.Go(func() {
							var statements []*pgdb.Statement
							for range 3 { // transactions, each of which waits
								statements = append(statements,
									&pgdb.Statement{SQL: "INSERT INTO t VALUES (1)"})
							}
							if err := db.Run(t.Context(), 50*time.Millisecond, statements); err == nil {
								t.Error("a commit has not waited for the standby")
							}
						})
					}
					wg.Wait()
					if n := sessions(); n > conns {
						t.Errorf("got %d sessions, want at most %d", n, conns)
					}
				}
				await.Within(t, testTimeout, "no session that waits for the standby", func() bool {
					return cluster.Query[int](t, admin, "SELECT count(*)::int FROM pg_stat_activity "+
						"WHERE wait_event = 'SyncRep'") == 0
				})
				if err := db.Run(t.Context(), testTimeout,
					[]*pgdb.Statement{{SQL: "SELECT 1"}}); err != nil {
					t.Errorf("a statement that does not wait: %v", err)
				}
			})
		}
	}
}

// While requests wait in vain for a lost standby, the limits that do not wait for one stay exact, and free
// the slots of requests in flight.
func TestOtherLimitsStayExactWithoutStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it starts a server")
	}
	t.Parallel()
	server := cluster.Private(t, cluster.Options{})
	admin := server.DSN("postgres")
	stores := map[string]ratelimit.Store{}
	for name, open := range drivers.All {
		for _, conns := range []int{2, 8} {
			store := newEngine(t, open(t, fmt.Sprintf("%s&pool_max_conns=%d", admin, conns)),
				engine.Options{DisableRememberedRefusals: true})
			if _, _, err := tryOne(store, testTimeout, ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "first",
				Events: 1, Window: time.Hour}, Key: "k", Cost: 1}); err != nil {
				t.Fatal(err)
			}
			stores[fmt.Sprint(name, " ", conns)] = store
		}
	}
	cluster.Execute(t, admin, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	cluster.Execute(t, admin, "SELECT pg_reload_conf()")
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			waits := &ratelimit.Limit{Prefix: "waits " + name, Events: 1e6, Window: time.Hour, Durable: true,
				SynchronousCommit: true}
			var flood sync.WaitGroup
			defer flood.Wait()
			ended := make(chan struct{})
			defer close(ended)
			for i := range 16 {
				flood.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-ended:
							return
						default:
							_, _, _ = tryOne(store, floodTimeout,
								ratelimit.Hit{Limit: waits, Key: fmt.Sprint(i), Cost: 1})
						}
					}
				})
			}
			time.Sleep(floodTimeout)
			for _, durable := range []bool{false, true} {
				checkExactWithoutStandby(t, store, fmt.Sprint(name, durable), durable)
			}
		})
	}
}

// floodTimeout is the timeout of requests that wait for a standby, and of those beside them.
const floodTimeout = time.Second

// checkExactWithoutStandby checks that limits which wait for no standby decide all requests, and rightly.
func checkExactWithoutStandby(t *testing.T, store ratelimit.Store, prefix string, durable bool) {
	t.Helper()
	window := &ratelimit.Limit{Prefix: "window " + prefix, Events: 20, Window: time.Hour, Durable: durable}
	flight := conformance.InFlight("flight "+prefix, 1)
	flight.Durable = durable
	for n := range 30 {
		d, _, err := tryOne(store, floodTimeout, ratelimit.Hit{Limit: window, Key: "k", Cost: 1})
		if err != nil || d.Allowed != (n < 20) {
			t.Fatalf("durable %v: request %d of 20: allowed %v, error %v", durable, n+1, d.Allowed, err)
		}
		slot := &ratelimit.Hold{}
		d, _, err = tryOne(store, floodTimeout, ratelimit.Hit{Limit: flight, Key: "k", Cost: 1, Hold: slot})
		if err != nil || !d.Allowed {
			t.Fatalf("durable %v: request in flight %d: allowed %v, error %v", durable, n+1, d.Allowed, err)
		}
		slot.Release()
	}
}
