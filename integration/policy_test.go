package integration

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// clientFrom returns a client that sends from an address of the loopback network.
func clientFrom(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{DialContext: dialer.DialContext}}
}

func statusOf(t *testing.T, client *http.Client, r *http.Request) int {
	t.Helper()
	response, err := harness.AskBy(client, r)
	if err != nil {
		t.Error(err)
	}
	return response.Status
}

func randomKey(t *testing.T) string {
	t.Helper()
	key, err := policy.NewKey()
	if err != nil {
		t.Error(err)
	}
	return key
}

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
