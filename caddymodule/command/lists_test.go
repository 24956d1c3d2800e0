package command_test

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// Sizes of TestListsReadFewRows. At full size, with -v for the times:
// go test -v -run TestListsReadFewRows ./caddymodule/command -users 100000 -keys 1000000 -rows 50000000
var (
	listUsers = flag.Int("users", 5000, "users of TestListsReadFewRows")
	listKeys  = flag.Int("keys", 20_000, "API keys of TestListsReadFewRows")
	listRows  = flag.Int("rows", 50_000, "rows of the audit log of TestListsReadFewRows, over 30 days")
)

// bigDatabase has users, keys and an audit log, in which a user has a row every few minutes.
func bigDatabase(t *testing.T) *shell {
	t.Helper()
	s := newShell(t, schema.File)
	s.sql(fmt.Sprintf(`INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro');
		SELECT rate_limit_rule('plan', per_hour => 100);
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'user-' || lpad(i::text, 7, '0'), CASE i %% 10
		WHEN 0 THEN 'pro' ELSE 'free' END FROM generate_series(1, %d) AS i;
		INSERT INTO rate_limit_api_keys (user_id, digest, hint, name)
		SELECT 'user-' || lpad((1 + i %% %d)::text, 7, '0'), sha256(i::text::bytea), 'prl_abcd', 'app'
		FROM generate_series(1, %d) AS i;
		SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - d) FROM generate_series(0, 30)
		AS d`, *listUsers, *listUsers, *listKeys))
	const slice = 200_000 // takes some seconds
	for from := 1; from <= *listRows; from += slice {
		s.sql(fmt.Sprintf(`INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix,
		limit_name, key, user_id, address, host, method, path, node, quota, remaining)
		SELECT now() - interval '30 days' * (i / %[1]d.0), 1, 900, CASE i %% 4 WHEN 0 THEN 'limited'
		ELSE 'allowed' END, 'rule/plan', 'per_hour', u, u,
			'10.0.0.0'::inet + i %% 1000000, 'api.example.com', 'GET', '/v1/x', 'edge', 100, 0
		FROM (SELECT i, 'user-' || lpad((1 + i %% %[2]d)::text, 7, '0') AS u FROM generate_series(%[3]d,
		%[4]d) AS i) AS i`, *listRows, *listUsers, from, min(from+slice-1, *listRows)))
	}
	for _, table := range strings.Fields(one[string](s, "SELECT string_agg(relname, ' ') FROM pg_class "+
		"WHERE relkind = 'r' AND relname LIKE 'rate\\_limit\\_%'")) {
		s.sql("VACUUM (ANALYZE) " + table) // each within the time that a statement has
	}
	return s
}

// rowsRead counts the rows of users, keys and the audit log that were read, and the scans.
func (s *shell) rowsRead() (rows, scans int64) {
	s.t.Helper()
	const sum = `SELECT coalesce(sum(%s), 0)::bigint FROM pg_stat_user_tables
		WHERE relname IN ('rate_limit_users', 'rate_limit_api_keys') OR relname LIKE 'rate\_limit\_audit%%'`
	return one[int64](s, fmt.Sprintf(sum, "seq_tup_read + idx_tup_fetch")),
		one[int64](s, fmt.Sprintf(sum, "seq_scan + idx_scan"))
}

// A list, and the page of a user, read only the rows that they show, however large the tables are.
func TestListsReadFewRows(t *testing.T) {
	s := bigDatabase(t)
	most := int64(min(*listUsers, *listKeys, *listRows) / 4)
	inAnHour := int64(*listRows / 24 / 30)
	reads := func(what string, most int64, ask func()) {
		t.Helper()
		rows, scans := s.rowsRead()
		began := time.Now()
		ask()
		took := time.Since(began)
		var after int64
		await.Within(t, time.Minute, "the statistics of "+what, func() bool {
			now, by := s.rowsRead()
			after = now
			return by > scans
		})
		t.Logf("%s: %v, %d rows", what, took.Round(time.Millisecond), after-rows)
		if after-rows > most {
			t.Errorf("%s reads %d rows, want %d at most", what, after-rows, most)
		}
	}
	for line, most := range map[string]int64{
		"users list": most, "users list --tier pro": most, "users get user-0000007": most, "keys list": most,
		"keys list --user user-0000007": most,
		"explain --user user-0000007":   most, "audit": most + 2*inAnHour, "top --since 1h": most +
			2*inAnHour,
		"audit --user user-0000007 --since 30d":                   most,
		"audit --user user-0000007 --since 30d --outcome limited": most,
	} {
		reads(line, most, func() { s.must(strings.Fields(line)...) })
	}
	for _, question := range []string{"why?who=user-0000007"} {
		reads("the page: "+question, most, func() {
			p, err := page.New(page.Options{DSN: s.dsn})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close() // its connections then write their statistics
			r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/api/"+question, nil)
			w := httptest.NewRecorder()
			p.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Fatalf("%s: status %d, want 200: %s", question, w.Code, w.Body)
			}
		})
	}
}
