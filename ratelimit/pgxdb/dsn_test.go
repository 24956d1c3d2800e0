package pgxdb_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// A DSN has one meaning in both drivers, and with psql if psql takes it: it connects, or is refused with an
// error that names the parameter.
func TestDSNHasOneMeaning(t *testing.T) {
	t.Parallel()
	base, dir := cluster.Open(t), t.TempDir()
	for _, mode := range []os.FileMode{0o600, 0o640, 0o440, 0o644, 0o604} {
		path := filepath.Join(dir, fmt.Sprintf("%04o", mode))
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	connect := func(db pgdb.DB, err error) string {
		if err == nil {
			defer db.Close()
			err = db.Run(t.Context(), time.Minute, []*pgdb.Statement{{SQL: "SELECT 1"}})
		}
		return strings.ReplaceAll(fmt.Sprint(err), dir, "DIR")
	}
	golden.ReplayLines(t, "testdata/dsns.txt", func(t *testing.T, kind, text string) string {
		dsn := base + strings.ReplaceAll(text, "DIR", dir)
		wire, wireErr := pgwire.Open(dsn, pgwire.Options{})
		pgx, pgxErr := pgxdb.Open(dsn, pgxdb.Options{})
		got := strings.TrimPrefix(connect(wire, wireErr), "pgwire: ")
		if other := connect(pgx, pgxErr); !strings.HasSuffix(other, got) {
			t.Errorf("%q: pgxdb has error %s, want %s", text, other, got)
		}
		if kind == "psql" {
			out, err := exec.CommandContext(t.Context(), "psql", "-c", "SELECT 1", dsn).CombinedOutput()
			if err != nil {
				t.Errorf("psql, %q: %v: %s, want it to connect", text, err, out)
			}
		}
		return got
	})
}

// While the changed DSN of a file is not valid, new connections use the one before, and the operator is told
// once.
func TestRefusedDSNKeepsTheOneBefore(t *testing.T) {
	t.Parallel()
	base := cluster.Open(t)
	for _, driver := range []string{"pgwire", "pgxdb"} {
		var changed atomic.Bool
		renew := func() (string, error) {
			if changed.Load() {
				return base + "&connection_limit=1", nil
			}
			return base, nil
		}
		reports := make(chan string, 10)
		db, err := pgdb.DB(nil), error(nil)
		if driver == "pgwire" {
			db, err = pgwire.Open(base, pgwire.Options{Renew: renew, Logger: func(s string) { reports <- s }})
		} else {
			db, err = pgxdb.Open(base,
				pgxdb.Options{Renew: renew, Refused: func(err error) { reports <- err.Error() }})
		}
		if err != nil {
			t.Fatal(err)
		}
		run := func() error { return db.Run(t.Context(), time.Minute, []*pgdb.Statement{{SQL: "SELECT 1"}}) }
		for range 3 {
			await.Within(t, time.Minute, driver+": a connection", func() bool { return run() == nil })
			changed.Store(true)
			cluster.Execute(t, base, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}
		await.Within(t, time.Minute, driver+": a connection", func() bool { return run() == nil })
		if text := <-reports; !strings.Contains(text, "connection_limit") || len(reports) > 0 {
			t.Errorf("%s: reports %q and %d more, want connection_limit once", driver, text, len(reports))
		}
		db.Close()
	}
}

// A parameter that the server does not know is an error of the configuration, and no outage.
func TestUnknownParameterIsNoOutage(t *testing.T) {
	t.Parallel()
	for driver, open := range drivers.All {
		for _, parameter := range []string{"&no_such_setting=1", "&no..such=1"} {
			db := open(t, cluster.Open(t)+parameter)
			store, err := postgres.New(db, postgres.Options{})
			if err != nil {
				t.Fatal(err)
			}
			hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour},
				Key: "k", Cost: 1}}
			err = store.Take(t.Context(), 10*time.Second, hits, make([]ratelimit.Decision, 1))
			if !errors.Is(err, pgdb.ErrConfiguration) || strings.Contains(err.Error(), "does not answer") {
				t.Errorf("%s, %s: error %v, want one of the configuration", driver, parameter, err)
			}
			store.Close()
		}
	}
}
