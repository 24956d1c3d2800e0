package reports

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// fourTimes are the requests to a limit of two.
var fourTimes = []ask{{n: 2, want: "200×2"}, {n: 2, want: "429×2"}}

// dsns returns a site with a limit of two for each DSN.
func dsns(dsns ...string) (sites []site) {
	for _, dsn := range dsns {
		sites = append(sites, site{handler: "dsn " + dsn, zones: []string{"limit 2 1h"}, asks: fourTimes})
	}
	return sites
}

// refusedDSNs returns a site for each DSN that is refused. pairs has DSNs, and what the error names.
func refusedDSNs(pairs ...string) (sites []site) {
	for i := 0; i < len(pairs); i += 2 {
		sites = append(sites, site{handler: "dsn " + pairs[i], zones: []string{"limit 2 1h"},
			refused: pairs[i+1]})
	}
	return sites
}

var databases = []report{
	{"R60", "prisma/orm#2520", refusedDSNs("DSN&pgbouncer=true", "pgbouncer",
		"DSN&connection_limit=1", "connection_limit", "DSN&schema=public", "schema", "DSN&pool=5", "pool",
		"DSN&sslaccept=accept_invalid_certs", "sslaccept", "DSN&prepareThreshold=0", "prepareThreshold",
		"DSN&binary_parameters=yes", "binary_parameters", "postgresql+asyncpg:REST", "postgresql+asyncpg",
		"postgis:REST", "postgis")},
	{"R61", "PostgreSQL, libpq, connection parameters", append(dsns("DSN&keepalives=1",
		"DSN&gssencmode=disable", "DSN&channel_binding=prefer", "DSN&target_session_attrs=any"), refusedDSNs(
		"DSN&hostaddr=127.0.0.1", "hostaddr", "DSN&load_balance_hosts=random", "load_balance_hosts",
		"DSN&sslnegotiation=direct", "sslnegotiation", "DSN&sslcertmode=disable", "sslcertmode",
		"DSN&service=x", "service")...)},
	{"F22", "kubernetes/kubernetes#57117; element-hq/ess-helm#881", append(dsns("DSN&passfile=FILES/0600",
		"DSN&passfile=FILES/0640", "DSN&passfile=FILES/0440"), refusedDSNs(
		"DSN&passfile=FILES/0644", "passfile has the mode 0644, must be for its owner and group alone",
		"DSN&passfile=FILES/none", "passfile cannot be read: no such file",
		"DATABASE_URL=DSN", "the parameter DATABASE_URL in the dsn holds a URL")...)},
	{"F22S", "PostgreSQL, settings that a server does not know", []site{
		{policy: withKey + "\ndsn DSN&no_such_PROXY=1", zones: []string{"limit 2 1h"},
			check: func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
				await.Within(t, time.Minute, id+": the state names the setting", func() bool {
					return cluster.Query[bool](t, p.dsn, `SELECT EXISTS (SELECT FROM rate_limit_state
						WHERE state = 'problem' AND summary LIKE '%no\_such\_' || $1 || '%')`, p.name)
				})
			}},
	}},
	{"R64", "express-rate-limit/rate-limit-postgresql#18; animir/node-rate-limiter-flexible#95, #125", []site{
		{only: "caddy", zones: []string{inSeconds}},
		{only: "traefik", zones: []string{inSeconds}, check: allAtOnce},
	}},
	{"R65", "unkeyed/unkey#4532; hatchet-dev/hatchet#1343", []site{
		{only: "caddy", zones: inThreeZones(1, 2, 3)},
		{only: "traefik", zones: inThreeZones(3, 2, 1), check: inOppositeOrders},
	}},
}

// countOf returns the sum of the counters with prefixes.
func countOf(t *testing.T, p *proxy, prefixes string) int {
	t.Helper()
	return cluster.Query[int](t, p.dsn, `SELECT coalesce(sum(count), 0)::int FROM rate_limit_ephemeral
		WHERE prefix ~ $1`, prefixes)
}

// writePassfiles writes password files that have their mode as their names, and returns their folder.
func writePassfiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o600, 0o640, 0o440, 0o644} {
		path := filepath.Join(dir, fmt.Sprintf("%04o", mode))
		err := errors.Join(os.WriteFile(path, []byte("*:*:*:*:password\n"), 0o600), os.Chmod(path, mode))
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
