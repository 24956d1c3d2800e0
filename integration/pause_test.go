package integration

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// command runs caddy pg-ratelimit on a database.
func command(t *testing.T, dsn string, args ...string) string {
	t.Helper()
	run := exec.Command(buildCaddy(t), append([]string{"pg-ratelimit", "--dsn", dsn}, args...)...)
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// A pause lets requests pass all limits on both proxies within a second, charges nothing, and lifts no
// ban and no block rule. Afterwards the limits are where they were.
func TestPauseSuspendsLimitsAlone(t *testing.T) {
	dsn := policyDatabase(t, people+`SELECT rate_limit_rule('plan', paths => '{/policy/*}', per_hour => 2), rate_limit_rule('none', paths => '{/policy/none}', per_hour => 0);
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/policy/admin/*}');
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('mallory', 'free'); INSERT INTO rate_limit_bans (user_id) VALUES ('mallory')`)
	const user = "{header.X-User}"
	proxies := startBoth(t, dsn,
		route{"/plain", "", object{"timeout": "30s", "prefix": "plain", "key": user, "limit": "2 1h"}},
		route{"/leased", "", object{"timeout": "30s", "prefix": "leased", "key": user, "limit": "100000 1h", "lease": "50%"}},
		route{"/policy", "", object{"timeout": "30s", "policy": object{"user": user}}})
	urls := []string{proxies[0].url, proxies[1].url}
	awaitObeyed(t, dsn, 2)
	var refused []*watcher
	for _, url := range urls {
		for _, path := range []string{"/plain", "/policy"} {
			user := []string{"X-User", "alice"}
			await(t, "a refusal of "+url+path, func() bool {
				return harness.Ask(t, harness.Get(url+path+"/", user...)).Status == http.StatusTooManyRequests
			})
			refused = append(refused, watch(t, []string{url + path}, user...)...)
		}
		for range 200 {
			harness.Ask(t, harness.Get(url+"/leased/", "X-User", "lessee"))
		}
	}
	const counted = "SELECT (SELECT coalesce(sum(count), 0) FROM rate_limit_ephemeral WHERE prefix LIKE 'rule/%' OR prefix = 'plain')::bigint"
	before := cluster.Query[int64](t, dsn, counted)

	change(t, dsn, "INSERT INTO rate_limit_pause (until, reason) VALUES (now() + interval '1 h', 'a test')", refused, http.StatusTooManyRequests, http.StatusOK)
	await(t, "the leases to be given back", func() bool {
		return cluster.Query[int64](t, dsn, "SELECT count FROM rate_limit_ephemeral WHERE prefix = 'leased'") == 400
	})
	for _, url := range urls {
		for path, want := range map[string]int{"/plain/": 200, "/leased/": 200, "/policy/": 200, "/policy/none": 200, "/policy/admin/x": 403} {
			for range 5 {
				a := harness.Ask(t, harness.Get(url+path, "X-User", "lessee"))
				if a.Status != want {
					t.Errorf("%s%s answers %d in a pause, want %d", url, path, a.Status, want)
				}
				for name := range a.Header {
					if strings.HasPrefix(name, "X-Ratelimit-") {
						t.Errorf("%s%s has the header %s in a pause", url, path, name)
					}
				}
			}
		}
		if a := harness.Ask(t, harness.Get(url+"/policy/", "X-User", "mallory")); a.Status != http.StatusForbidden {
			t.Errorf("%s answers a banned user %d in a pause, want 403", url, a.Status)
		}
	}
	if after := cluster.Query[int64](t, dsn, counted); after != before {
		t.Errorf("%d is counted in the pause, want %d as before", after, before)
	}
	if n := cluster.Query[int64](t, dsn, "SELECT sum(count)::bigint FROM rate_limit_ephemeral WHERE prefix = 'leased'"); n != 400 {
		t.Errorf("%d requests with a lease are counted in the pause, want 400 as before", n)
	}
	await(t, "the registry to say that proxies obey", func() bool {
		return cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_nodes WHERE paused") == 2
	})
	if out := command(t, dsn, "nodes"); !strings.Contains(out, "All limits of this database are paused until ") || strings.Count(out, "  yes  ") != 2 {
		t.Errorf("nodes prints\n%s", out)
	}
	for _, p := range proxies {
		p.AwaitLog(t, "limits are paused until ")
	}

	change(t, dsn, "DELETE FROM rate_limit_pause", refused, http.StatusOK, http.StatusTooManyRequests)
	for _, p := range proxies {
		p.AwaitLog(t, "limits apply again")
	}
	if n := cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_changes WHERE kind = 'pause'"); n != 2 {
		t.Errorf("the log of changes has %d lines about the pause, want 2", n)
	}
}
