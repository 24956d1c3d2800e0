package tables_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Whatever sessions do at once, at any isolation, no chain of parents ends in itself or has more than four
// levels, and each level is one more than its parent's.
func TestConcurrentChangesOfParentsKeepLevels(t *testing.T) {
	dsn := cluster.Open(t, schema.File, `INSERT INTO rate_limit_tiers VALUES ('t');
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || n, 't' FROM generate_series(1, 8) n`)
	var sessions sync.WaitGroup
	changed := make([]int, 8)
	for n := range changed {
		sessions.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			conn, err := pgx.Connect(context.Background(), dsn)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close(context.Background()) }()
			if _, err := conn.Exec(context.Background(), "SET deadlock_timeout = '5ms'"); err != nil {
				t.Error(err)
			}
			isolation := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[n%3]
			for range 100 {
				tx, err := conn.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: isolation})
				if err != nil {
					t.Error(err)
					return
				}
				parent := any(fmt.Sprint("u", 1+random.IntN(8)))
				if random.IntN(4) == 0 {
					parent = nil
				}
				_, err = tx.Exec(context.Background(),
					"UPDATE rate_limit_users SET parent = $2 WHERE user_id = $1",
					fmt.Sprint("u", 1+random.IntN(8)), parent)
				if err == nil {
					err = tx.Commit(context.Background())
				}
				if err == nil {
					changed[n]++
				}
				_ = tx.Rollback(context.Background())
			}
		})
	}
	sessions.Wait()
	for n, changes := range changed {
		if changes == 0 {
			t.Errorf("session %d has changed nothing", n)
		}
	}
	got := cluster.Query[string](t, dsn, `SELECT coalesce(string_agg(u.user_id, ' '), 'right')
		FROM rate_limit_users u LEFT JOIN rate_limit_users p ON p.user_id = u.parent
		WHERE u.level <> coalesce(p.level, 0) + 1 OR u.level > 4
			OR u.parent IS NOT NULL AND p.user_id IS NULL`)
	if got != "right" {
		t.Errorf("users with a wrong level: %s", got)
	}
}
