package reports

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// command runs a command of Caddy, and returns its output.
func (p *proxy) command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := runCommand(t, p.dsn, args...)
	if err != nil {
		t.Errorf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// runCommand runs a command of Caddy on a database.
func runCommand(t *testing.T, dsn string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(harness.Caddy(t, "../.."), append([]string{"pg-ratelimit"}, args...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// published is SQL that publishes all tables, and creates a user with an API key.
const published = `DO $$ BEGIN CREATE PUBLICATION reports FOR ALL TABLES;
	EXCEPTION WHEN duplicate_object THEN NULL; END $$;
	INSERT INTO rate_limit_users (user_id, tier) VALUES ('zoe-PROXY', 'free');
	INSERT INTO rate_limit_api_keys (id, digest, user_id)
	SELECT max(id) + 1, sha256('ID-9f86d081884c7d659a2feaa0c55ad015'), 'zoe-PROXY' FROM rate_limit_api_keys;
	SELECT rate_limit_make_partition(current_date - 40, 'rate_limit_audit');
	INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node, user_id)
		VALUES (now() - interval '40 days', 1, 1, 'limited', 'p', 'n', 'zoe-PROXY');
	SELECT rate_limit_ledger_upkeep();
	INSERT INTO rate_limit_ledger (day, id, time, user_id, output, charges)
		VALUES (current_date, gen_random_uuid(), now(), 'zoe-PROXY', 77, '[]');`

var forgotten = []report{
	{"R59", "duckdb/ducklake#1365; timgit/pg-boss#387", []site{{
		policy: withKey, handler: "audit all", zones: []string{"limit 100 1h"}, sql: published,
		asks: []ask{{n: 3, headers: "X-Api-Key: ID-9f86d081884c7d659a2feaa0c55ad015", want: "200×3"}},
		check: func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
			user := "zoe-" + p.name
			rows := func() int {
				return cluster.Query[int](t, p.dsn, `SELECT (SELECT count(*) FROM rate_limit_audit
					WHERE user_id = $1)::int + (SELECT count(*) FROM rate_limit_users WHERE user_id = $1)::int
					+ (SELECT count(*) FROM rate_limit_api_keys WHERE user_id = $1)::int`, user)
			}
			p.Await(t, "the history", func() bool { return rows() == 6 })
			p.command(t, "forget", "--user", user, "--account")
			p.command(t, "upkeep")
			if n := rows(); n != 0 {
				t.Errorf("%s: %d rows of the user are left, want none", id, n)
			}
			if n := cluster.Query[int](t, p.dsn, `SELECT count(*)::int FROM rate_limit_ledger
				WHERE output = 77 AND user_id = $1`, user); n != 0 {
				t.Errorf("%s: a row of the ledger names the user, want only its sums", id)
			}
			if n := cluster.Query[int](t, p.dsn, `SELECT count(*)::int FROM rate_limit_ledger
				WHERE output = 77 AND user_id IS NULL`); n == 0 {
				t.Errorf("%s: the row of the ledger is gone, want its sums", id)
			}
			got := dial(t, p.trusted, hostOf(id)).ask(t, "GET /", "")
			if got.Status != http.StatusUnauthorized {
				t.Errorf("%s: a request with no key has the status %d after forget, want 401", id, got.Status)
			}
		},
	}}},
}
