package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// oddDatabases prepare a database, and return its DSN.
var oddDatabases = map[string]func(t *testing.T, dsn, database string) string{
	"settings": func(t *testing.T, dsn, database string) string {
		for _, setting := range []string{"jit_above_cost = 0", "jit_optimize_above_cost = 0",
			"statement_timeout = '50ms'", "lock_timeout = '1ms'", "plan_cache_mode = force_custom_plan"} {
			cluster.Execute(t, dsn, "ALTER DATABASE "+database+" SET "+setting)
		}
		return dsn
	},
	"LATIN1": func(t *testing.T, dsn, database string) string {
		latin := database + "_latin1"
		cluster.Execute(t, dsn,
			"CREATE DATABASE "+latin+" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
		t.Cleanup(func() { cluster.Execute(t, dsn, "DROP DATABASE "+latin+" WITH (FORCE)") })
		return strings.Replace(dsn, database, latin, 1)
	},
}

// TestProxiesOnAnOddDatabase has both proxies make their tables, count and obey on a database with settings
// that cost other programs their time, and on one that is not UTF-8. A key that was used while the server's
// clock was two days ahead passes again.
func TestProxiesOnAnOddDatabase(t *testing.T) {
	if testing.Short() {
		t.Skip("starts four proxies, which takes half a minute")
	}
	const ahead = "interval '2 days'"
	const own = "SET statement_timeout = 0; SET lock_timeout = 0; " // of the test's statements
	for name, change := range oddDatabases {
		t.Run(name, func(t *testing.T) {
			plain := cluster.Open(t)
			dsn := change(t, plain, cluster.Query[string](t, plain, "SELECT current_database()"))
			var routes []route
			for _, a := range ratelimit.Algorithms() {
				if a != ratelimit.InFlight {
					routes = append(routes, route{"/" + a.String(), "",
						decideAlways(object{"prefix": "PROXY-" + a.String(), "algorithm": a.String(),
							"limit": "1 1h", "policy": object{}})})
				}
			}
			both := startBoth(t, dsn, routes...)
			ask := func(url string) int { return harness.Ask(t, harness.Get(url)).Status }
			passOnce := func(when string) {
				t.Helper()
				for _, p := range both {
					for _, r := range routes {
						await(t, p.url+r.path+" to pass "+when,
							func() bool { return ask(p.url+r.path) == http.StatusOK })
						if status := ask(p.url + r.path); status != http.StatusTooManyRequests {
							t.Errorf("%s%s, %s: %d", p.url, r.path, when, status)
						}
					}
				}
			}
			passOnce("once")
			cluster.Execute(t, dsn,
				own+"UPDATE rate_limit_ephemeral SET window_start = window_start + "+ahead+", last_refill "+
					"= last_refill + "+ahead+
					", hits = ARRAY(SELECT h + "+ahead+" FROM unnest(hits) h), expires_at = "+
					"expires_at + "+ahead)
			passOnce("again")
			cluster.Execute(t, dsn,
				own+"SELECT rate_limit_rule('shut', action => 'block', paths => '{/gcra}')")
			for _, p := range both {
				await(t, p.url+" to obey a rule",
					func() bool { return ask(p.url+"/gcra") == http.StatusForbidden })
			}
		})
	}
}
