package command_test

import (
	_ "embed"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/page"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Sizes of TestListsReadFewRows. At full size, with -v for the times:
// go test -v -run TestListsReadFewRows ./admin/command -users 100000 -keys 1000000 -rows 50000000
var (
	listUsers = flag.Int("users", 5000, "users of TestListsReadFewRows")
	listKeys  = flag.Int("keys", 20_000, "API keys of TestListsReadFewRows")
	listRows  = flag.Int("rows", 50_000, "rows of the audit log of TestListsReadFewRows, over 3 days")
)

// bigDatabase creates USERS users and KEYS keys.
//
//go:embed testdata/big.sql
var bigDatabase string

// newBigDatabase creates users, keys, and an audit log in which each user has a row every few minutes.
func newBigDatabase(t *testing.T) *shell {
	t.Helper()
	s := newShell(t, schema.File)
	s.sql(strings.NewReplacer("USERS", strconv.Itoa(*listUsers), "KEYS", strconv.Itoa(*listKeys)).Replace(
		bigDatabase))
	const batchRows = 200_000 // takes some seconds
	for from := 1; from <= *listRows; from += batchRows {
		s.sql(fmt.Sprintf(`INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix,
		limit_name, key, user_id, address, host, method, path, node, quota, remaining)
		SELECT now() - interval '3 days' * (i / %[1]d.0), 1, 900, CASE i %% 4 WHEN 0 THEN 'limited'
		ELSE 'admitted' END, 'rule/plan', 'per_hour', u, u,
			'10.0.0.0'::inet + i %% 1000000, 'api.example.com', 'GET', '/v1/x', 'edge', 100, 0
		FROM (SELECT i, 'user-' || lpad((1 + i %% %[2]d)::text, 7, '0') AS u FROM generate_series(%[3]d,
		%[4]d) AS i) AS i`, *listRows, *listUsers, from, min(from+batchRows-1, *listRows)))
	}
	for _, table := range cluster.Texts(t, s.dsn, "SELECT relname::text FROM pg_class WHERE relkind = 'r' "+
		"AND relname LIKE 'rate\\_limit\\_%'") {
		s.sql("VACUUM (ANALYZE) " + table) // one statement per table, each within the statement timeout
	}
	return s
}

// rowsRead returns how many rows of users, keys and the audit log the server has read, in how many scans.
func (s *shell) rowsRead() (rows, scans int64) {
	s.t.Helper()
	const sum = `SELECT coalesce(sum(%s), 0)::bigint FROM pg_stat_user_tables
		WHERE relname IN ('rate_limit_users', 'rate_limit_api_keys') OR relname LIKE 'rate\_limit\_audit%%'`
	return cluster.Query[int64](s.t, s.dsn, fmt.Sprintf(sum, "seq_tup_read + idx_tup_fetch")),
		cluster.Query[int64](s.t, s.dsn, fmt.Sprintf(sum, "seq_scan + idx_scan"))
}

// checkRowsRead fails the test if run reads more rows than most. It runs it up to three times, because the
// statistics of an earlier session can come late.
func (s *shell) checkRowsRead(name string, most int64, run func()) {
	s.t.Helper()
	var got int64
	for range 3 {
		rows, scans := s.rowsRead()
		start := time.Now()
		run()
		took := time.Since(start)
		await.Within(s.t, time.Minute, "the statistics of "+name, func() bool {
			rowsAfter, scansAfter := s.rowsRead()
			got = rowsAfter - rows
			return scansAfter > scans
		})
		s.t.Logf("%s: %v, %d rows", name, took.Round(time.Millisecond), got)
		if got <= most {
			return
		}
	}
	s.t.Errorf("%s reads %d rows, want at most %d", name, got, most)
}

// rowsPerRange is the number of rows in a block range of the audit log's index on time: 16 pages of 77 rows.
const rowsPerRange = 16 * 77

// Each list, and the page's report on a user, reads at most twice the rows that it shows or counts. Where
// only the index on time finds rows of the audit log, it also reads some whole block ranges. Around midnight,
// the first or the last partition is so small that each step of a list reads it whole.
func TestListsReadFewRows(t *testing.T) {
	s := newBigDatabase(t)
	small := cluster.Query[int64](t, s.dsn, `SELECT min(rows) FROM (SELECT count(*) AS rows
		FROM rate_limit_audit GROUP BY date_trunc('day', time, 'UTC')) AS days`)
	if small > rowsPerRange {
		small = 0
	}
	small = min(5*small, rowsPerRange)
	rowsPerHour := int64(*listRows / 24 / 3)
	rowsOfUser := int64(*listRows / *listUsers)
	keysOfUser := int64(*listKeys / *listUsers)
	read := func(name string, needed, ranges int64, run func()) {
		s.checkRowsRead(name, 2*needed+ranges*rowsPerRange+small, run)
	}
	for _, c := range []struct {
		line           string
		needed, ranges int64
	}{
		{"users list", 100, 0},
		{"users list --tier pro", 10 * 100, 0}, // one user in ten is pro, and no index has tiers
		{"users get user-0000007", 3*keysOfUser + 1, 0},
		{"keys list", 100, 0},
		{"keys list --user user-0000007", keysOfUser, 0},
		{"explain --user user-0000007", 1, 0},
		{"audit --user user-0000007 --since 3d", min(rowsOfUser, 50), 0},
		{"audit --user user-0000009 --since 3d --outcome limited", min(rowsOfUser, 50), 0},
		{"audit --outcome limited", 50, 0},
		// It reads a minute, and the minutes before until it has 50 rows: a range for each of 4 or 5 periods.
		{"audit", max(50, rowsPerHour/60), 5},
		{"top --since 1h", rowsPerHour, 2},
	} {
		read(c.line, c.needed, c.ranges, func() { s.mustRun(strings.Fields(c.line)...) })
	}
	// The page counts the refusals of a user and of an API key in 24 hours.
	read("the page: why?who=user-0000007", keysOfUser+rowsOfUser/3, 4, func() {
		p, err := page.New(page.Options{DSN: s.dsn})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close() // ends the connections, which then write their statistics
		r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/api/why?who=user-0000007", nil)
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("why: status %d, want 200: %s", w.Code, w.Body)
		}
	})
}
