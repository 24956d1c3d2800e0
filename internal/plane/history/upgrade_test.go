package history_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

var upgradeRows = flag.Int("upgrade-rows", 100000, "rows of the audit log in TestAnUpgradeUnderLoadStopsNoDecision")

// oldProxy is a proxy of the version before: it calls the functions as that version does.
type oldProxy struct {
	s       *site
	batches int64
	retried int
	slowest time.Duration
}

// write writes a batch: a row, a minute and a day with one request each.
func (p *oldProxy) write(ctx context.Context) error {
	now := time.Now()
	one, none := []int64{1}, []int64{0}
	text := func(s string) []string { return []string{s} }
	began := time.Now()
	defer func() { p.slowest = max(p.slowest, time.Since(began)) }()
	return pgx.BeginFunc(ctx, p.s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT rate_limit_begin_batch($1, $2, $3, $4, $5, $6)", "old", "old", "", p.batches+1, p.batches+1, 0); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT rate_limit_record_audit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)",
			"old", "", []int64{now.UnixMicro()}, text("limited"), text(""), text("p"), text(""), text("k"), text("anna"), text(""), text(""), text(""), text("GET"), text("/"), text(""),
			one, one, one, none, none, none, one, []int64{429}, text("1")); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT rate_limit_record_metrics($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
			"", []int64{now.Unix() / 60}, text("p"), text("h"), text(""), none, one, none, none, none, none, none, one, text("{1}")); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT rate_limit_record_usage($1, $2, $3, $4, $5, $6, $7)", []int64{now.Unix() / 86400}, text("anna"), none, one, none, one, []int64{now.UnixMicro()})
		return err
	})
}

// run writes batches until ctx ends. Like a proxy, it sends a batch again that was not written.
func (p *oldProxy) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.write(context.Background())
		var failure *pgconn.PgError
		if err == nil || errors.As(err, &failure) && failure.Code == "23505" {
			p.batches++
			continue
		}
		if p.retried++; p.retried > 100 {
			p.s.t.Errorf("the proxy of the version before cannot write: %v", err)
			return
		}
		p.s.t.Logf("sent again: %v", err)
	}
}

// TestAnUpgradeUnderLoadStopsNoDecision: a database of the version before gets the new tables in
// place, while proxies decide and while one of the version before writes. Nothing is rewritten and
// nothing is lost. make test-history does it with 10,000,000 rows of the audit log.
func TestAnUpgradeUnderLoadStopsNoDecision(t *testing.T) {
	const most = 500 * time.Millisecond
	ctx := context.Background()
	s := newSite(t)
	old, err := os.ReadFile("../../core/schema/testdata/history_1.sql")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatalf("%.200s: %v", sql, err)
		}
	}
	run(string(old))
	run("SELECT rate_limit_make_partition(now()::date + d) FROM generate_series(-89, 7) d; CREATE ROLE reader_" + s.text("SELECT current_database()"))
	t.Cleanup(func() {
		s.exec("DROP OWNED BY reader_" + s.text("SELECT current_database()"))
		s.exec("DROP ROLE reader_" + s.text("SELECT current_database()"))
	})
	run("GRANT SELECT ON rate_limit_metrics TO reader_" + s.text("SELECT current_database()") +
		"; GRANT EXECUTE ON FUNCTION rate_limit_record_metrics, rate_limit_record_usage TO reader_" + s.text("SELECT current_database()"))
	run(fmt.Sprintf(`INSERT INTO rate_limit_audit (time, cost, duration_us, decision, prefix, key, user_id, host, method, path, node)
		SELECT now() - i * interval '89 days' / %[1]d, 1, 350, CASE WHEN i %% 10 = 0 THEN 'limited' ELSE 'allowed' END, 'web', 'user-' || i %% 10007, 'user-' || i %% 10007, 'api.example.com', 'GET', '/api/v1/things/' || i %% 1000, 'n'
			FROM generate_series(1, %[1]d) i;
		INSERT INTO rate_limit_metrics (granularity, time, prefix, host, route, region, requests, limited, latency)
		SELECT g, date_trunc(g, now() - i * interval '5 days' / %[1]d), 'web', 'h' || i, '', '', 1, 1, array_fill(1::bigint, ARRAY[200]) FROM generate_series(1, %[1]d / 30) i, unnest('{minute,hour,day}'::text[]) g;
		INSERT INTO rate_limit_usage (day, user_id, requests, last_request) SELECT now()::date - 1, 'user-' || i, 1, now() - interval '1 day' FROM generate_series(1, %[1]d / 10) i`, *upgradeRows))
	const storage = "SELECT md5(string_agg(relfilenode::text, ' ' ORDER BY oid)) FROM pg_class WHERE oid = ANY ($1)"
	var tables []uint32
	var before, after string
	if err := s.pool.QueryRow(ctx, "SELECT array_agg(oid) FROM pg_class WHERE relkind = 'r' AND relname ~ '^rate_limit_'").Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if err := s.pool.QueryRow(ctx, storage, tables).Scan(&before); err != nil {
		t.Fatal(err)
	}

	db, err := pgxdb.Open(s.dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(db, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limit := &ratelimit.Limit{Prefix: "p", Events: 1 << 40, Window: time.Hour}
	take := func() time.Duration {
		began := time.Now()
		if err := store.Take(ctx, time.Minute, []ratelimit.Hit{{Limit: limit, Key: "k", Cost: 1}}, make([]ratelimit.Decision, 1)); err != nil {
			t.Error(err)
		}
		return time.Since(began)
	}
	take()
	proxy := &oldProxy{s: s}
	loading, stop := context.WithCancel(ctx)
	var load sync.WaitGroup
	var slowest time.Duration
	decisions := 0
	load.Add(2)
	go func() {
		defer load.Done()
		proxy.run(loading)
	}()
	go func() {
		defer load.Done()
		for ; loading.Err() == nil; decisions++ {
			slowest = max(slowest, take())
		}
	}()
	written := func(more int64) {
		t.Helper()
		from := s.number("SELECT coalesce(max(batch), 0) FROM rate_limit_writers")
		await.Within(t, 30*time.Second, "the proxy of the version before writes", func() bool {
			return s.number("SELECT coalesce(max(batch), 0) FROM rate_limit_writers") >= from+more
		})
	}
	written(20)
	began := time.Now()
	for history.Migrate(ctx, s.db()) != nil { // as a proxy does
		if time.Since(began) > time.Minute {
			t.Fatal("the tables could not be upgraded within a minute")
		}
	}
	took := time.Since(began)
	written(20)
	stop()
	load.Wait()
	t.Logf("upgraded %d rows in %s, meanwhile the slowest of %d decisions took %s, and the slowest batch of a proxy of the version before %s", *upgradeRows,
		took.Round(time.Millisecond), decisions, slowest.Round(time.Millisecond), proxy.slowest.Round(time.Millisecond))
	if slowest > most {
		t.Errorf("a decision took %s, want %s at most", slowest, most)
	}

	if err := s.pool.QueryRow(ctx, storage, tables).Scan(&after); err != nil {
		t.Fatal(err)
	}
	same(t, "files of the tables", after, before)
	n, b := int64(*upgradeRows), proxy.batches
	same(t, "rows", s.text("SELECT (SELECT count(*) FROM rate_limit_audit), (SELECT sum(requests)::bigint FROM rate_limit_metrics WHERE granularity = 'minute'), (SELECT sum(requests)::bigint FROM rate_limit_usage)"),
		fmt.Sprint(n+b, " ", n/30+b, " ", n/10+b))
	// A partition without rows has the index, and so has each new one.
	same(t, "indexes", s.text(`SELECT count(*) FILTER (WHERE p.begins > now()), count(*) FILTER (WHERE p.begins <= now()) FROM rate_limit_partitions() p
		JOIN pg_index i ON i.indrelid = p.id JOIN pg_inherits h ON h.inhrelid = i.indexrelid AND h.inhparent = 'rate_limit_audit_decision'::regclass`), "7 0")
	same(t, "grants", s.text("SELECT has_table_privilege('reader_' || current_database(), 'rate_limit_metrics', 'SELECT')::int, has_function_privilege('reader_' || current_database(), (SELECT oid FROM pg_proc WHERE proname = 'rate_limit_record_usage'), 'EXECUTE')::int"), "1 1")
	// Proxies of both versions write beside each other.
	w := s.writer(history.Settings{})
	history.Add(w, &history.Record{Time: time.Now(), Outcome: history.Limited, Prefix: "p", Host: "h", User: "anna", Status: 429, Audit: auditAll})
	flush(t, w)
	if err := proxy.write(ctx); err != nil {
		t.Error(err)
	}
	same(t, "both", s.text("SELECT sum(requests)::bigint, sum(refused)::bigint, sum(limited)::bigint FROM rate_limit_usage WHERE user_id = 'anna'"), fmt.Sprint(b+2, " ", b+2, " 1"))
	if report, err := history.Upkeep(ctx, s.db(), time.Time{}); err != nil || len(report.Skipped) > 0 {
		t.Errorf("upkeep: %+v, %v", report, err)
	}
}
