package caddymodule_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

func TestTheHistoryIsArchivedDaily(t *testing.T) {
	dsn := cluster.Open(t)
	conn := cluster.Connect(t, dsn)
	if _, err := conn.Exec(t.Context(), schema.History+`;
SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - 20);
INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, node) VALUES (now() - interval '20 days', 1, 1, 'limited', 'login', 'n1')`); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	site := func(archive string) string {
		return strings.NewReplacer("DSN", dsn, "ARCHIVE", archive).Replace(`
		{
			pg_ratelimit {
				dsn DSN
				node_name edge-1
				history {
					archive ARCHIVE
				}
			}
		}
		:PORT {
			pg_ratelimit PREFIX {
				limit 100 1h
			}
		}`)
	}
	c := start(t, site(dir+" daily before 10d drop"))
	const state = "SELECT concat_ws(' ', count(*), bool_and(succeeded_at IS NOT NULL), max(node), sum(files), max(problem)) FROM rate_limit_archives"
	await.Within(t, time.Minute, "the history is archived", func() bool { return cluster.Query[string](t, dsn, state) == "1 t edge-1 1" })
	name := "audit/" + time.Now().UTC().AddDate(0, 0, -20).Format("2006/01/2006-01-02") + ".parquet"
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		t.Error(err)
	}
	if n := cluster.Query[int](t, dsn, "SELECT count(*) FROM rate_limit_audit WHERE time < now() - interval '10 days'"); n != 0 {
		t.Errorf("%d rows are left, want the day dropped", n)
	}
	await.Within(t, time.Minute, "the log says so", func() bool { return len(c.lines("archived the history")) == 1 })
	if m := measured(t); time.Since(time.Unix(int64(m["archive_succeeded_timestamp_seconds"]), 0)) > time.Hour || m["archive_failed_timestamp_seconds"] != 0 {
		t.Errorf("the metrics have a success at %v and a failure at %v, want only a success", m["archive_succeeded_timestamp_seconds"], m["archive_failed_timestamp_seconds"])
	}

	// A folder that is not there does not keep Caddy from its work, and all say so.
	missing := filepath.Join(dir, "missing")
	c.load(site(missing + " daily"))
	c.expect(200, "/")
	await.Within(t, time.Minute, "the database says that it failed", func() bool {
		return cluster.Query[int](t, dsn, "SELECT count(*) FROM rate_limit_archives WHERE failed_at IS NOT NULL AND problem LIKE '%a folder that exists%' AND target LIKE '%/missing'") == 1
	})
	await.Within(t, time.Minute, "the metrics say that it failed", func() bool { return measured(t)["archive_failed_timestamp_seconds"] > 0 })
	await.Within(t, time.Minute, "the log says why", func() bool { return strings.Contains(c.logged(), "a folder that exists") })
}
