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

// someTime is a time in the middle of a second, of a minute and of a day.
var someTime = time.Date(2026, 11, 20, 12, 30, 15, 500_000_000, time.UTC)

// site has a database and the Writers on it.
type site struct {
	t    testing.TB
	dsn  string
	pool *pgxpool.Pool

	mu       sync.Mutex
	reported []string
}

func newSite(t testing.TB) *site {
	t.Helper()
	return siteOn(t, cluster.Open(t))
}

func siteOn(t testing.TB, dsn string) *site {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &site{t: t, dsn: dsn, pool: pool}
}

func (s *site) exec(sql string) {
	s.t.Helper()
	if _, err := s.pool.Exec(context.Background(), sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *site) number(sql string) int64 {
	s.t.Helper()
	return cluster.Query[int64](s.t, s.dsn, sql)
}

// text returns all rows of a query, with spaces between columns.
func (s *site) text(sql string) string {
	s.t.Helper()
	rows, err := s.pool.Query(context.Background(), sql)
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			s.t.Fatalf("%s: %v", sql, err)
		}
		lines = append(lines, strings.TrimSuffix(fmt.Sprintln(values...), "\n"))
	}
	if err := rows.Err(); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(lines, "\n")
}

func (s *site) db() pgdb.DB {
	s.t.Helper()
	db := drivers.All["pgxdb"](s.t, s.dsn)
	s.t.Cleanup(db.Close)
	return db
}

// writer returns a Writer that only writes on Flush.
func (s *site) writer(settings history.Settings) *history.Writer {
	s.t.Helper()
	return s.writerOn(s.db(), settings)
}

func (s *site) writerOn(db pgdb.DB, settings history.Settings) *history.Writer {
	s.t.Helper()
	settings.OnError = func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reported = append(s.reported, err.Error())
	}
	if settings.Node == "" {
		settings.Node = "n1"
	}
	w, err := history.New(db, settings)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(w.Close)
	return w
}

// reports returns the errors that the Writers reported.
func (s *site) reports() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.reported...)
}

func flush(t testing.TB, w *history.Writer) {
	t.Helper()
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// same reports an error if two texts differ.
func same(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
	}
}
