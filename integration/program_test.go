package integration

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// Beside a Traefik, the program pg-ratelimit suffices: it makes the tables, sets a rule that the Traefik
// enforces, and serves the page that shows the Traefik. No Caddy runs or is built.
func TestTheProgramSufficesBesideATraefik(t *testing.T) {
	program := pgRatelimit(t)
	dsn := cluster.Open(t)
	command := func(args ...string) { run(t, ".", program, append(args, "--dsn", dsn)...) }
	command("migrate")
	command("rules", "set", "plan", "count_by=all", "algorithm=fixed_window", "per_day=2")
	traefik := startTraefik(t, []route{{path: "/", limit: object{"timeout": "10s", "onError": "deny",
		"policy": object{"user": "{header.X-User}"}}}}, "DATABASE_URL="+dsn)
	awaitPolicyApplied(t, dsn, 1)
	check.Equal(t, "requests under a rule of 2 a day", statusesOf(t, 3, traefik.url+"/"), "200 200 429")
	address := harness.FreeAddress(t)
	harness.Start(t, harness.Program{Name: "the page", Path: program, Dir: t.TempDir(),
		Args: []string{"page", "--listen", address, "--dsn", dsn}}).AwaitAddress(t, address)
	for path, want := range map[string]int{"/": http.StatusOK, "/api/proxies": http.StatusOK,
		"/api/state": http.StatusOK} {
		check.Equal(t, path, harness.Ask(t, harness.Get("http://"+address+path)).Status, want)
	}
	await(t, "the Traefik on the page", func() bool {
		return len(harness.Ask(t, harness.Get("http://"+address+"/api/proxies")).Body) > len("[]\n")
	})
}
