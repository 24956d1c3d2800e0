package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// checkClients sends requests of a client, of another client, and of the first client with a forged address,
// through a proxy to a limit of 1 for each client. The first request must pass; other and forged are the
// statuses of the second and the third.
func checkClients(t *testing.T, what any, url string, other, forged int) {
	t.Helper()
	got := ""
	for _, forwarded := range []string{"203.0.113.1", "203.0.113.2", "198.51.100.7, 203.0.113.1"} {
		got += statusesOf(t, 1, url, "X-Forwarded-For", forwarded) + " "
	}
	if want := fmt.Sprintf("200 %d %d ", other, forged); got != want {
		t.Errorf("%q: a client, another client and a forged address get %s, want %s", what, got, want)
	}
}

// Without trusted_proxies, all clients behind a proxy share one quota. Without trusted_proxies_strict, a
// client can choose its address. With both, each client has its own quota.
func TestCaddyBehindAProxy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		options             string
		otherClient, forged int
	}{
		{options: "", otherClient: http.StatusTooManyRequests, forged: http.StatusTooManyRequests},
		{options: "trusted_proxies static 127.0.0.1/32", otherClient: http.StatusOK, forged: http.StatusOK},
		{options: "trusted_proxies static 127.0.0.1/32\n\t\ttrusted_proxies_strict",
			otherClient: http.StatusOK, forged: http.StatusTooManyRequests},
	} {
		address := harness.FreeAddress(t)
		config := fmt.Sprintf("{\n\tadmin off\n\tservers {\n\t\t%s\n\t}\n}\nhttp://%s {\n\tpg_ratelimit "+
			"web {\n\t\tdsn memory\n\t\tlimit 1 1h\n\t}\n\trespond ok\n}\n", test.options, address)
		c := startCaddyOn(t, address, config)
		checkClients(t, test.options, c.url, test.otherClient, test.forged)
	}
}

// Without forwardedHeaders.trustedIPs, Traefik drops the header X-Forwarded-For, so all clients behind a
// proxy share one quota. With it, each client has its own quota.
func TestTraefikBehindAProxy(t *testing.T) {
	t.Parallel()
	backend := startBackend(t)
	limit := object{"dsn": "memory", "prefix": "web", "limit": "1 1h", "ipStrategy": object{"depth": 1}}
	for _, test := range []struct {
		entryPoint  object
		otherClient int
	}{
		{object{}, http.StatusTooManyRequests},
		{object{"forwardedHeaders": object{"trustedIPs": []string{"127.0.0.1/32"}}}, http.StatusOK},
	} {
		tr := startTraefikWith(t, test.entryPoint, "INFO",
			[]route{{path: "/limited", backend: backend, limit: limit}})
		checkClients(t, test.entryPoint, tr.url+"/limited", test.otherClient, http.StatusTooManyRequests)
	}
}
