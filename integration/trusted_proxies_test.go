package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// statuses asks a URL once with each X-Forwarded-For, and returns the statuses.
func statuses(t *testing.T, url string, forwarded ...string) []int {
	t.Helper()
	var all []int
	for _, addresses := range forwarded {
		all = append(all, harness.Ask(t, harness.Get(url, "X-Forwarded-For", addresses)).Status)
	}
	return all
}

// TestCaddyBehindAProxy: without trusted_proxies all clients behind a proxy are one client.
// Without trusted_proxies_strict a client chooses its key. With both, each client has its
// own quota.
func TestCaddyBehindAProxy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		options             string
		otherClient, forged int
	}{
		{"", http.StatusTooManyRequests, http.StatusTooManyRequests},
		{"trusted_proxies static 127.0.0.1/32", http.StatusOK, http.StatusOK},
		{"trusted_proxies static 127.0.0.1/32\n\t\ttrusted_proxies_strict", http.StatusOK,
			http.StatusTooManyRequests},
	} {
		address := harness.FreeAddress(t)
		config := fmt.Sprintf("{\n\tadmin off\n\tservers {\n\t\t%s\n\t}\n}\nhttp://%s {\n\tpg_ratelimit "+
			"web {\n\t\tdsn memory\n\t\tlimit 1 1h\n\t}\n\trespond ok\n}\n", test.options, address)
		c := launchConfig(t, buildCaddy(t), address, config)
		c.AwaitAddress(t, address)
		got := statuses(t, c.url, "203.0.113.1", "203.0.113.2", "198.51.100.7, 203.0.113.1")
		if want := []int{http.StatusOK, test.otherClient, test.forged}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: a client, another client and the first client with a forged address get "+
				"%v, want %v", test.options, got, want)
		}
	}
}

// TestTraefikBehindAProxy: without forwardedHeaders.trustedIPs Traefik drops the header, and
// all clients behind a proxy are one client.
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
		tr := startTraefikWith(t, test.entryPoint, "INFO", []route{{"/limited", backend, limit}})
		got := statuses(t, tr.url+"/limited", "203.0.113.1", "203.0.113.2", "198.51.100.7, 203.0.113.1")
		if want := []int{http.StatusOK, test.otherClient, http.StatusTooManyRequests}; fmt.Sprint(
			got) != fmt.Sprint(want) {
			t.Errorf("%v: a client, another client and the first client with a forged address get "+
				"%v, want %v", test.entryPoint, got, want)
		}
	}
}
