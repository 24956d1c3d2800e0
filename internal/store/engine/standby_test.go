package engine_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Commits that wait for a lost standby leave no sessions behind, and never more than the pool's bound.
func TestLostStandbyLeavesNoSessionsBehind(t *testing.T) {
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
