package admin_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// migrated makes a database with all tables.
func migrated(t testing.TB) (dsn string) {
	t.Helper()
	return cluster.Open(t, schema.File)
}
