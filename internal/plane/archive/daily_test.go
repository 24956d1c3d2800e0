package archive_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/archive"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

const aDay = 24 * time.Hour

// stateOf is what the database says about the last run.
func stateOf(t *testing.T, conn *pgx.Conn) (state string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `SELECT node || ': ' || files || ' files' || CASE WHEN succeeded_at IS NOT NULL THEN ', succeeded' ELSE '' END
	|| CASE WHEN failed_at IS NOT NULL THEN ', failed: ' ELSE '' END || coalesce(problem, '') FROM rate_limit_archives`).Scan(&state); err != nil {
		t.Fatal(err)
	}
	return state
}

func TestOneProxyOfAllArchivesOnceADay(t *testing.T) {
	dsn, conn := open(t)
	keepLong(t, conn)
	execute(t, conn, "INSERT INTO rate_limit_usage (day, user_id, requests, last_request) SELECT (now() AT TIME ZONE 'UTC')::date - n, 'ada', n, now() FROM generate_series(1, 40) n")
	dir := t.TempDir()
	s := archive.Schedule{Node: "n1", To: dir, Before: 30 * aDay, Expire: 7 * 366 * aDay}
	var ran atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		other := cluster.Connect(t, dsn)
		all.Go(func() {
			for range 3 {
				did, err := archive.Daily(t.Context(), other, s)
				if err != nil {
					t.Error(err)
				}
				if did {
					ran.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := ran.Load(); n != 1 {
		t.Errorf("%d proxies archived, want one", n)
	}
	// The days 31 to 40 before today have ended 30 days before now.
	did, err := archive.Daily(t.Context(), conn, s)
	if n, state := len(files(t, dir)), stateOf(t, conn); err != nil || did || n != 10 || state != "n1: 10 files, succeeded" {
		t.Errorf("%d files, %s, %v, %v, want 10 files, and that the run of today is known", n, state, did, err)
	}
	// The next day, after a restart, from another proxy.
	execute(t, conn, "UPDATE rate_limit_archives SET began_at = began_at - interval '1 day', succeeded_at = succeeded_at - interval '1 day'")
	s.Node, s.Before = "n2", 29*aDay
	did, err = archive.Daily(t.Context(), cluster.Connect(t, dsn), s)
	if state := stateOf(t, conn); err != nil || !did || state != "n2: 1 files, succeeded" {
		t.Errorf("the next day: %s, %v, %v, want one file of n2", state, did, err)
	}
}

func TestADailyArchiveThatFailsIsTriedAgainAfterAnHour(t *testing.T) {
	_, conn := open(t)
	keepLong(t, conn)
	dir := filepath.Join(t.TempDir(), "not-mounted")
	s := archive.Schedule{Node: "n1", To: dir, Before: 30 * aDay}
	did, err := archive.Daily(t.Context(), conn, s)
	if state := stateOf(t, conn); err == nil || !did || !strings.HasPrefix(state, "n1: 0 files, failed: ") || !strings.Contains(state, "a folder that exists") {
		t.Errorf("%s, %v, %v, want the failure, in the database too", state, did, err)
	}
	if did, err := archive.Daily(t.Context(), conn, s); did || err != nil {
		t.Errorf("at once: %v, %v, want no run", did, err)
	}
	execute(t, conn, "UPDATE rate_limit_archives SET began_at = began_at - interval '61 min'")
	s.To = t.TempDir()
	execute(t, conn, "UPDATE rate_limit_archives SET target = $1", s.To) // the folder is there now
	did, err = archive.Daily(t.Context(), conn, s)
	if state := stateOf(t, conn); err != nil || !did || state != "n1: 0 files, succeeded" {
		t.Errorf("an hour later: %s, %v, %v, want a success", state, did, err)
	}
}

// A foreign file has the name of a day.
func TestADailyArchiveSaysWhatFailed(t *testing.T) {
	_, conn := open(t)
	keepLong(t, conn)
	makeDays(t, conn, 1, 3)
	dir := t.TempDir()
	folder := filepath.Join(dir, "audit", "2026", "08")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	foreign := []string{"2026-08-01.parquet", "mine.parquet.tmp"}
	for _, name := range foreign {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("foreign"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := archive.Daily(t.Context(), conn, archive.Schedule{Node: "n1", To: dir, Before: aDay})
	state := stateOf(t, conn)
	for what, text := range map[string]string{"the error": fmt.Sprint(err), "the table": state} {
		if strings.Count(text, "2026-08-01.parquet cannot be used") != 1 || strings.Contains(text, "above") {
			t.Errorf("%s says %q, want which file cannot be used", what, text)
		}
	}
	for _, name := range foreign {
		if text, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(text) != "foreign" {
			t.Errorf("%s has %q, %v", name, text, err)
		}
	}
}
