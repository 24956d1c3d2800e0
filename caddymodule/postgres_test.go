package caddymodule_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// tables returns how many of the two tables exist.
func tables(t *testing.T, dsn string) int {
	return cluster.Query[int](t, dsn,
		"SELECT count(*) FROM pg_class WHERE relname IN ('rate_limit_ephemeral', 'rate_limit_durable')")
}

// `caddy validate` must not change a database.
func TestValidatingTouchesNoDatabase(t *testing.T) {
	dsn := cluster.Open(t)
	config, err := adapt(":8080 {\n\tpg_ratelimit demo {\n\t\tdsn " + dsn + "\n\t\tlimit 1 1m\n\t}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(config); err != nil {
		t.Fatal(err)
	}
	// No event says when to continue.
	time.Sleep(200 * time.Millisecond)
	if n := cluster.Connections(t, dsn) + tables(t, dsn); n != 0 {
		t.Errorf("%d tables and connections", n)
	}
}
