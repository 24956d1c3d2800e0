package admin_test

import (
	"context"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// migrated makes a database with all tables. It skips the test on a server that is too old for the policy.
func migrated(t testing.TB) (dsn string) {
	t.Helper()
	ctx := context.Background()
	dsn = cluster.Open(t)
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if m, err := db.Migrate(ctx); err != nil {
		if m.Policy == "not possible" {
			t.Skip("the policy needs Postgres 15")
		}
		t.Fatal(err)
	}
	return dsn
}
