package caddymodule_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// `caddy validate` does not connect to a database.
func TestValidateDoesNotConnect(t *testing.T) {
	dsn := cluster.Open(t)
	config, err := caddytest.Adapt(":8080 {\n\tpg_ratelimit demo {\n\t\tdsn " + dsn +
		"\n\t\tlimit 1 1m\n\t}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := caddytest.Validate(config); err != nil {
		t.Fatal(err)
	}
	// A connection would be opened in the background, without an event to wait for.
	time.Sleep(200 * time.Millisecond)
	check.Equal(t, "open connections", cluster.Connections(t, dsn), 0)
	n := cluster.Query[int](t, dsn, `SELECT count(*) FROM pg_class WHERE relname LIKE 'rate\_limit%'`)
	check.Equal(t, "tables", n, 0)
}
