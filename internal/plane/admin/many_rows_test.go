package admin_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

var auditRows = flag.Int("audit-rows", 200000, "rows of the audit log in TestQuestionsAboutManyRows; above the default it also checks the times")

// manyDays is how many days the rows are of, and manyUsers how many users sent the requests.
const (
	manyDays  = 90
	manyUsers = 10007
)

// fillSQL makes rows from a time ($1) on, one every $2 microseconds, $3 rows after the first $4:
// half of them of users, half of anybody.
const fillSQL = `INSERT INTO %s (time, cost, quota, remaining, key_id, retry_after_ms, duration_us, status, decision, prefix, limit_name, key, user_id, tier, address, host, method, path, node)
SELECT $1::timestamptz + (i - $4::bigint) * $2::bigint * interval '1 microsecond', 1, 1000, i %% 1000, CASE WHEN i %% 2 = 0 THEN i * 7919 %% %[2]d END,
	CASE WHEN i %% 10 = 0 THEN 1500 END, 350, CASE WHEN i %% 10 = 0 THEN 429 END, CASE WHEN i %% 10 = 0 THEN 'limited' ELSE 'allowed' END,
	CASE WHEN i %% 2 = 0 THEN 'rule/free' ELSE 'web' END, CASE WHEN i %% 2 = 0 THEN 'per_hour' END,
	CASE WHEN i %% 2 = 0 THEN 'user-' || i * 7919 %% %[2]d ELSE '10.0.' || i %% 250 || '.' || i * 7919 %% 251 END, CASE WHEN i %% 2 = 0 THEN 'user-' || i * 7919 %% %[2]d END,
	CASE WHEN i %% 2 = 0 THEN 'free' END, ('10.0.' || i %% 250 || '.' || i * 7919 %% 251)::inet, 'api.example.com', 'GET', '/api/v1/things/' || i %% 1000, 'edge-1'
FROM generate_series($4::bigint + 1, $4::bigint + $3::bigint) i`

// manyRows makes an audit log of many rows over 90 days until now.
func manyRows(t *testing.T, dsn string) (now time.Time) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if err := conn.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	now = now.UTC()
	step := int64(manyDays*24*time.Hour/time.Microsecond) / int64(*auditRows)
	made := int64(0)
	for from := now.AddDate(0, 0, -manyDays); from.Before(now); {
		day := from.Truncate(24 * time.Hour)
		until := day.Add(24 * time.Hour)
		partition := "rate_limit_audit_" + day.Format("20060102")
		run(fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s PARTITION OF rate_limit_audit FOR VALUES FROM ('%s') TO ('%s')", partition, day.Format(time.DateOnly), until.Format(time.DateOnly)))
		if until.After(now) {
			until = now
		}
		if rows := (until.Sub(from).Microseconds() - 1) / step; rows > 0 {
			run(fmt.Sprintf(fillSQL, partition, manyUsers), from, step, rows, made)
			made += rows
		}
		run("VACUUM ANALYZE " + partition) // as autovacuum does
		from = until
	}
	return now
}

// scanned is how often the partitions were read from the first to the last row, but for the
// newest two, and how many pages of all partitions and of their indexes were read or found in
// memory. allPages are those of the partitions.
type scanned struct{ whole, pages, indexPages, allPages int64 }

func scannedSoFar(t *testing.T, conn *pgx.Conn, now time.Time) scanned {
	t.Helper()
	var s scanned
	err := conn.QueryRow(context.Background(), `SELECT coalesce(sum(s.seq_scan) FILTER (WHERE s.relname < $1), 0)::bigint,
	sum(b.heap_blks_read + b.heap_blks_hit)::bigint, coalesce(sum(b.idx_blks_read + b.idx_blks_hit), 0)::bigint, sum(pg_relation_size(s.relid) / 8192)::bigint
FROM pg_stat_user_tables s JOIN pg_statio_user_tables b USING (relid) WHERE s.relname LIKE 'rate\_limit\_audit\_2%'`, "rate_limit_audit_"+now.AddDate(0, 0, -1).Format("20060102")).
		Scan(&s.whole, &s.pages, &s.indexPages, &s.allPages)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestQuestionsAboutManyRows: with 90 days in the audit log, a question reads few of the rows. It
// takes no more than 200 ms with 50,000,000 rows: make test-history.
func TestQuestionsAboutManyRows(t *testing.T) {
	const most = 200 * time.Millisecond
	ctx := context.Background()
	dsn := cluster.Open(t)
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := db.Migrate(ctx); m.History != "created" {
		t.Fatal(err)
	}
	db.Close()
	filling := time.Now()
	now := manyRows(t, dsn)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	awaitCounts(t, conn, now, scanned{})
	t.Logf("%d rows in %s", *auditRows, time.Since(filling).Round(time.Second))

	last := func(d time.Duration) admin.Period { return admin.Period{From: now.Add(-d), Until: now} }
	const user = "user-7" // of every second row, one of 10,007
	for _, q := range []struct {
		what string
		ask  func(db *admin.Database) (int, error)
		want int // at least so many rows of 50,000,000
	}{
		{"audit --user", func(db *admin.Database) (int, error) {
			rows, err := db.Audit(ctx, &admin.AuditQuery{Period: last(time.Hour), User: user, Most: 50})
			return len(rows), err
		}, 0},
		{"audit --user --since 90d", func(db *admin.Database) (int, error) {
			rows, err := db.Audit(ctx, &admin.AuditQuery{Period: last(manyDays * 24 * time.Hour), User: user, Most: 50})
			return len(rows), err
		}, 5},
		{"audit --user --decision limited --since 90d", func(db *admin.Database) (int, error) {
			rows, err := db.Audit(ctx, &admin.AuditQuery{Period: last(manyDays * 24 * time.Hour), User: user, Decisions: []string{"limited"}, Most: 50})
			return len(rows), err
		}, 0},
		{"audit", func(db *admin.Database) (int, error) {
			rows, err := db.Audit(ctx, &admin.AuditQuery{Period: last(time.Hour), Most: 50})
			return len(rows), err
		}, 50},
		{"top --since 1h", func(db *admin.Database) (int, error) {
			rows, err := db.TopSince(ctx, last(time.Hour), "", 20)
			return len(rows), err
		}, 20},
		{"top --since 1h --prefix rule/free", func(db *admin.Database) (int, error) {
			rows, err := db.TopSince(ctx, last(time.Hour), "rule/free", 20)
			return len(rows), err
		}, 20},
	} {
		before := scannedSoFar(t, conn, now)
		db, err := admin.Open(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		const times = 5
		var took []time.Duration
		for range times {
			asked := time.Now()
			found, err := q.ask(db)
			took = append(took, time.Since(asked))
			if err != nil || found < q.want {
				t.Errorf("%s: %d rows, %v, want %d or more", q.what, found, err, q.want)
			}
		}
		db.Close() // the server counts what a connection has read when it ends
		after := awaitCounts(t, conn, now, before)
		if whole := after.whole - before.whole; whole != 0 {
			t.Errorf("%s: %d partitions were read as a whole", q.what, whole/times)
		}
		pages := (after.pages - before.pages) / times
		if pages > after.allPages/10 {
			t.Errorf("%s: it reads %d pages of %d", q.what, pages, after.allPages)
		}
		first := took[0]
		slices.Sort(took)
		t.Logf("%-45s %8.1f ms, the first time %.1f ms; %d pages of %d", q.what, took[times/2].Seconds()*1000, first.Seconds()*1000, pages, after.allPages)
		if *auditRows > 200000 && took[times/2] > most {
			t.Errorf("%s: %s, want %s", q.what, took[times/2], most)
		}
	}
}

// awaitCounts waits until the server has counted what ended connections have read since before: no other
// connection is left, and the counts have changed, and change no more.
func awaitCounts(t *testing.T, conn *pgx.Conn, now time.Time, before scanned) scanned {
	t.Helper()
	latest := before
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var others int
		if err := conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").Scan(&others); err != nil {
			t.Fatal(err)
		}
		next := scannedSoFar(t, conn, now)
		if others == 0 && next == latest && next != before {
			return next
		}
		latest = next
	}
	t.Fatal("the server has not counted what was read")
	return latest
}
