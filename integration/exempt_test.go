package integration

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestExemptRequestsAreNotCounted in both proxies. The upstream never gets the header with the secret, which is in the
// environment or in a file, and a wrong secret is no exemption.
func TestExemptRequestsAreNotCounted(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Internal") != "" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(upstream.Close)
	const secret = "correct horse battery staple"
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, configured := range []string{"X-Internal {env.INTERNAL_SECRET}", "X-Internal {file." + file + "}"} {
		store := []string{dsn, "memory"}[i]
		for proxy, url := range bothProxies(t, store, upstream.URL, "exempt 192.0.2.0/24\nexempt_header "+configured+"\nzone caddy {\n\tlimit 2 1h\n}",
			object{"exempt": "192.0.2.0/24", "exemptHeader": configured, "zones": []object{{"prefix": "traefik", "limit": "2 1h"}}}, "INTERNAL_SECRET="+secret) {
			for _, step := range []struct {
				statuses string
				headers  []string
			}{
				{"200 200 200", []string{"X-Internal", secret}},
				{"200 200 429", []string{"X-Internal", "wrong"}},
				{"429", nil},
				{"200 200", []string{"x-internal", secret}},
			} {
				if got := answersTo(t, (len(step.statuses)+1)/4, url, step.headers...); got != step.statuses {
					t.Errorf("%s, %s, %q: %s, want %s", proxy, configured, step.headers, got, step.statuses)
				}
			}
			if got := quotaLeft(t, url, "X-Internal", secret); got != " " {
				t.Errorf("%s: an exempt request has the headers %q", proxy, got)
			}
		}
	}
	for proxy, url := range bothProxies(t, dsn, upstream.URL, "exempt 127.0.0.0/8\nprefix caddy-address\nlimit 1 1h", object{"exempt": "127.0.0.0/8", "prefix": "traefik-address", "limit": "1 1h"}) {
		if got := answersTo(t, 3, url); got != "200 200 200" {
			t.Errorf("%s: exempt addresses are answered %s", proxy, got)
		}
	}
	if n := queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral"); n != 4 {
		t.Errorf("%d requests are counted, want 4", n)
	}
}

// TestTheRulesApplyToExemptRequests of a policy, but not the limits of the configuration.
func TestTheRulesApplyToExemptRequests(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `SELECT rate_limit_rule('all', count_by => '{all}', algorithm => 'fixed_window', per_hour => 100);`)
	for proxy, url := range bothProxies(t, dsn, startBackend(t), "exempt 127.0.0.1\npolicy\nzone caddy {\n\tlimit 1 1h\n}",
		object{"exempt": "127.0.0.1", "policy": object{"tier": "anonymous"}, "zones": []object{{"prefix": "traefik", "limit": "1 1h"}}}) {
		if got := answersTo(t, 3, url); got != "200 200 200" {
			t.Errorf("%s answers %s", proxy, got)
		}
		if got := quotaLeft(t, url); got[:4] != "100 " {
			t.Errorf("%s: the headers say %s", proxy, got)
		}
	}
}
