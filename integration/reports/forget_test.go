package reports

import (
	_ "embed"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// command runs a command of Caddy, and returns its output.
func (v *visit) command(args ...string) string {
	v.Helper()
	out, err := runCommand(v, v.dsn, args...)
	if err != nil {
		v.Errorf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// runCommand runs a command of Caddy on a database.
func runCommand(t testing.TB, dsn string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(harness.Caddy(t, "../.."), append([]string{"pg-ratelimit"}, args...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// published is SQL that publishes all tables, and creates a user with an API key.
//
//go:embed testdata/published.sql
var published string

var forgotten = []report{
	{"R59", "duckdb/ducklake#1365; timgit/pg-boss#387", []site{{
		policy: withKey, handler: "audit all", zones: []string{"limit 100 1h"}, sql: published,
		asks: []ask{{n: 3, headers: "X-Api-Key: ID-9f86d081884c7d659a2feaa0c55ad015", want: "200×3"}},
		check: func(v *visit) {
			user := "zoe-" + v.name
			rows := func() int {
				return cluster.Query[int](v, v.dsn, `SELECT (SELECT count(*) FROM rate_limit_audit
					WHERE user_id = $1)::int + (SELECT count(*) FROM rate_limit_users WHERE user_id = $1)::int
					+ (SELECT count(*) FROM rate_limit_api_keys WHERE user_id = $1)::int`, user)
			}
			v.Await("the history", func() bool { return rows() == 6 })
			v.command("forget", "--user", user, "--account")
			v.command("upkeep")
			check.Equal(v, "the rows of the user that are left", rows(), 0)
			check.Equal(v, "the rows of the ledger: that name the user, and that do not",
				cluster.Query[string](v, v.dsn, `SELECT concat_ws(' ', count(*) FILTER (WHERE user_id = $1),
					count(*) FILTER (WHERE user_id IS NULL) > 0) FROM rate_limit_ledger WHERE output = 77`,
					user), "0 t")
			check.Equal(v, "the status without a key", v.dial().ask("GET /", "").Status,
				http.StatusUnauthorized)
		},
	}}},
}
