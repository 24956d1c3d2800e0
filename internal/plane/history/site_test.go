package history_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// baseTime is a time in the middle of a second, a minute and a day.
var baseTime = time.Date(2026, 11, 20, 12, 30, 15, 500_000_000, time.UTC)

// testDB is a database with Writers on it.
type testDB struct {
	t    testing.TB
	dsn  string
	pool *pgxpool.Pool

	mu       sync.Mutex
	reported []string
}

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return openTestDB(t, cluster.Open(t))
}

func openTestDB(t testing.TB, dsn string) *testDB {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &testDB{t: t, dsn: dsn, pool: pool}
}

func (d *testDB) exec(sql string) {
	d.t.Helper()
	if err := cluster.Exec(context.Background(), d.pool, sql); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func (d *testDB) queryInt(sql string) int64 {
	d.t.Helper()
	return cluster.Query[int64](d.t, d.dsn, sql)
}

// query returns all rows of a query as lines, with spaces between columns.
func (d *testDB) query(sql string) string {
	d.t.Helper()
	rows, err := d.pool.Query(context.Background(), sql)
	if err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			d.t.Fatalf("%s: %v", sql, err)
		}
		lines = append(lines, strings.TrimSuffix(fmt.Sprintln(values...), "\n"))
	}
	if err := rows.Err(); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(lines, "\n")
}

func (d *testDB) openDB() pgdb.DB {
	d.t.Helper()
	openDB := drivers.All["pgxdb"](d.t, d.dsn)
	d.t.Cleanup(openDB.Close)
	return openDB
}

// newWriter returns a Writer that writes only in Flush.
func (d *testDB) newWriter(settings history.Settings) *history.Writer {
	d.t.Helper()
	return d.newWriterOn(d.openDB(), settings)
}

func (d *testDB) newWriterOn(db pgdb.DB, settings history.Settings) *history.Writer {
	d.t.Helper()
	settings.OnError = func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.reported = append(d.reported, err.Error())
	}
	if settings.Node == "" {
		settings.Node = "n1"
	}
	w, err := history.New(db, settings)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(w.Close)
	return w
}

// reportedErrors returns the texts of all errors that the Writers have reported.
func (d *testDB) reportedErrors() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.reported...)
}

func flush(t testing.TB, w *history.Writer) {
	t.Helper()
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}
