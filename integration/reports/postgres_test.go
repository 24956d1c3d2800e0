package reports

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

var databases = []report{
	{"F22S", "PostgreSQL, settings that a server does not know", []site{
		{policy: withKey + "\ndsn DSN&no_such_PROXY=1", zones: []string{"limit 2 1h"},
			check: func(v *visit) {
				v.Await("the state names the setting", func() bool {
					return cluster.Query[bool](v, v.dsn, `SELECT EXISTS (SELECT FROM rate_limit_state
						WHERE state = 'problem' AND summary LIKE '%no\_such\_' || $1 || '%')`, v.name)
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
func (v *visit) countOf(prefixes string) int {
	v.Helper()
	return cluster.Query[int](v, v.dsn, `SELECT coalesce(sum(count), 0)::int FROM rate_limit_ephemeral
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
