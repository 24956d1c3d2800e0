package cluster

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// A standby has what its primary has, and takes its place.
func TestAStandbyFollows(t *testing.T) {
	Tool(t, "pg_basebackup")
	primary := Private(t, Options{HBA: trustEverybody + "host replication all 127.0.0.1/32 trust\n"})
	standby := Private(t, Options{})
	if err := standby.Follow(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	conn := Connect(t, primary.DSN("postgres"))
	await.Within(t, 20*time.Second, "the connection of the standby", func() (streams bool) {
		err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')").Scan(&streams)
		return err == nil && streams
	})
	Execute(t, primary.DSN("postgres"), "CREATE TABLE t AS SELECT 1 AS n")
	if err := primary.Stop(); err != nil { // not before the standby has everything
		t.Fatal(err)
	}
	if primary.Runs() || !standby.Runs() {
		t.Error("a server that was stopped runs, or its standby does not")
	}
	Execute(t, standby.DSN("postgres"), "SELECT pg_promote()")
	Execute(t, standby.DSN("postgres"), "INSERT INTO t VALUES (2)")
}
