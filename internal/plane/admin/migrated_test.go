package admin_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// migrated makes a database with all tables. It skips the test on a server that is too old for the policy.
func migrated(t testing.TB) (dsn string) {
	t.Helper()
	cluster.Needs(t, 15)
	return cluster.Open(t, schema.File)
}
