package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// If the tables cannot be created, the counters, the policy and the history each log the server's error and
// the statement that helps, also if the first statement of a transaction fails.
func TestFailedSetUpNamesCauseAndMend(t *testing.T) {
	for sql, want := range map[string][]string{
		`DROP EXTENSION plpgsql`: {`language "plpgsql" does not exist`,
			"CREATE EXTENSION IF NOT EXISTS plpgsql"},
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on',
			current_database()); END $$`: {"read-only transaction",
			"SET default_transaction_read_only = 'off'"},
		`CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql
			AS $$ BEGIN RAISE EXCEPTION 'not here'; END $$;
		CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse()`: {"not here",
			"schema.sql"},
	} {
		for driver, open := range drivers.All {
			dsn := cluster.Open(t)
			cluster.Execute(t, dsn, sql)
			lines := make(chan host.Line, 100)
			p := &host.Process{Kind: "test", Log: func(line host.Line) { lines <- line },
				Connect: func(*host.DataSource) (pgdb.DB, error) { return open(t, dsn), nil }}
			source := &host.DataSource{Connection: settings.Connection{DSN: dsn, AutoMigrate: true}}
			h, err := p.Open(&host.DataSources{Limits: *source, Policy: source, History: source}, timeout)
			if err != nil {
				t.Fatal(err)
			}
			h.Prepare()
			logged := map[string]bool{}
			await.Within(t, time.Minute, "lines of all parts", func() bool {
				select {
				case line := <-lines:
					text := line.Err.Error()
					if strings.HasPrefix(text, "upkeep") {
						break // of the history, which its tables lack
					}
					logged[line.Text] = true
					if !strings.Contains(text, want[0]) || !strings.Contains(text, want[1]) {
						t.Errorf("%s, %s: %s: %v, want %q", driver, sql, line.Text, line.Err, want)
					}
				default:
				}
				return len(logged) == 3
			})
			h.End()
		}
	}
}
