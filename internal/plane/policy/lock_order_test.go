package policy_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// A statement of a proxy and TRUNCATE ... CASCADE never deadlock, because they lock tables in the same order:
// while the statement waits for a table, it has no lock on a later table.
func TestStatementsLockTablesInOrderOfTruncate(t *testing.T) {
	d := newTestDB(t)
	other, watching := cluster.Connect(t, d.dsn), cluster.Connect(t, d.dsn)
	const waiting = "NOT waits.granted AND waits.database = (SELECT oid FROM pg_database WHERE datname = " +
		"current_database())"
	for sql, args := range policy.Statements {
		waited := false
		for _, table := range []string{"tiers", "users", "api_keys", "rules", "rule_limits", "overrides",
			"bans"} {
			if _, err := other.Exec(t.Context(), "BEGIN; LOCK TABLE rate_limit_"+table); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := d.pool.Exec(t.Context(), sql, args...)
				done <- err
			}()
			var waits bool
			await.Within(t, time.Minute, "a statement that waits or has ended", func() bool {
				if err := watching.QueryRow(t.Context(),
					"SELECT count(*) > 0 FROM pg_locks waits WHERE "+waiting+" AND relation = $1::regclass",
					"rate_limit_"+table).Scan(&waits); err != nil {
					t.Fatal(err)
				}
				return waits || len(done) > 0
			})
			waited = waited || waits
			var later int
			if err := watching.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks waits
				JOIN pg_locks has USING (pid) JOIN pg_class c ON c.oid = has.relation
				WHERE `+waiting+` AND has.granted AND c.relkind = 'r' AND c.relname LIKE 'rate_limit%'
				AND has.relation > waits.relation`).Scan(&later); err != nil {
				t.Fatal(err)
			}
			if later > 0 {
				t.Errorf("locks on later tables while waiting for %s: got %d, want 0: %s", table, later, sql)
			}
			if _, err := other.Exec(t.Context(), "COMMIT"); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("got the error %v, want none: %s", err, sql)
			}
		}
		if !waited {
			t.Errorf("got no wait for any table, want one: %s", sql)
		}
	}
}
