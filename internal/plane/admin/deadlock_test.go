package admin_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// A command takes the lock on its row, and then that on the table. A session that takes these locks in the
// other order, as policy apply does, must not make the command fail.
func TestACommandSurvivesADeadlock(t *testing.T) {
	ctx := context.Background()
	b := newPolicyBench(t)
	b.sql("SELECT rate_limit_rule('free', per_hour => 10)")
	// The server ends the transaction of the command, which looks for deadlocks first.
	b.sql("SET deadlock_timeout = '60s'")
	tx, err := b.conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE rate_limit_rules IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.db.Set(ctx, admin.SetRule, "free", []string{"per_hour=20", "priority=5"}, false)
		ended <- err
	}()
	await.Within(t, time.Minute, "the command waits", func() bool {
		var waits bool
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'rate_limit_rules'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&waits)
		return err == nil && waits
	})
	if _, err := tx.Exec(ctx, "UPDATE rate_limit_rules SET comment = 'x'"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := b.text("SELECT concat(r.comment, l.events) FROM rate_limit_rules r JOIN rate_limit_rule_limits l ON l.rule = r.name WHERE r.name = 'free'"); got != "x20" {
		t.Errorf("the rule has %s", got)
	}
}
