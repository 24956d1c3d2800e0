package pg_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
)

// Requests and migrations write nothing into the server's log, with and without a harmful setting.
func TestTheServerLogsNoWarnings(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it starts a server")
	}
	t.Parallel()
	server := cluster.Private(t, cluster.Options{})
	for _, setting := range []string{"", "&work_mem=64kB"} {
		for _, open := range drivers.All {
			db := open(t, server.DSN("postgres")+setting)
			decide(t, db, 600)
			db.Close()
		}
	}
	log, err := os.ReadFile(server.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "WARNING") {
			t.Fatalf("the server's log has %d warnings, want 0; the first: %s",
				strings.Count(string(log), "WARNING"), line)
		}
	}
}
