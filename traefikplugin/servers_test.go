package traefikplugin

import (
	"context"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// number returns the number that a query returns.
func number(t *testing.T, dsn, sql string) int {
	t.Helper()
	conn := cluster.Watch(t, context.Background(), dsn)
	defer conn.Close(context.Background())
	n := 0
	if err := conn.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
