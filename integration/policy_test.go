package integration

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// awaitPolicyApplied waits until the given number of proxies have applied all changes of the policy.
func awaitPolicyApplied(t *testing.T, dsn string, proxies int) {
	t.Helper()
	await(t, "the proxies to apply all changes", func() bool {
		return cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_proxies WHERE behind = 0") ==
			int64(proxies)
	})
}

// governedBy starts two Caddies and a Traefik on a database with a policy and with further settings, and
// returns their URLs. They have a zone of 1,000,000 an hour for each user.
func governedBy(t *testing.T, dsn string, settings object) (urls []string) {
	t.Helper()
	settings["policy"] = object{"apiKey": "{header.Authorization}", "user": "{header.X-User}"}
	settings["zones"] = []object{{"prefix": "zone", "key": "{header.X-User}{header.Authorization}",
		"limit": "1000000 1h", "algorithm": "fixed_window"}}
	routes := []route{{path: "/", limit: settings}}
	for range 2 {
		urls = append(urls, startCaddy(t, dsn, routes...).url)
	}
	return append(urls, startTraefik(t, routes, "DATABASE_URL="+dsn).url)
}
