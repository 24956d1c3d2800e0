package integration

import (
	"fmt"
	"maps"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestAnUnknownAddressIsThatOfTheConnection in Traefik, as in Caddy, if X-Forwarded-For gives no address: for keys, for
// rules and for bans. It exempts from nothing, and the audit log does not have it: it may be that of a balancer.
func TestAnUnknownAddressIsThatOfTheConnection(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `SELECT rate_limit_rule('free', networks => '{127.0.0.0/8}', paths => '{/exempt}', action => 'exempt');
		SELECT rate_limit_rule('paid', paths => '{/exempt}', count_by => '{all}', algorithm => 'fixed_window', per_hour => 1);`)
	backend := startBackend(t)
	base := func(more object) object {
		all := object{"dsn": dsn, "timeout": "30s", "onError": "deny", "ipStrategy": object{"excludedIPs": []string{"10.0.0.0/8"}}}
		maps.Copy(all, more)
		return all
	}
	tr := startTraefikWith(t, object{"forwardedHeaders": object{"trustedIPs": []string{"127.0.0.1/32"}}}, "INFO", []route{
		{"/key", backend, base(object{"prefix": "key", "limit": "2 1h"})},
		{"/config-exempt", backend, base(object{"prefix": "config-exempt", "limit": "2 1h", "exempt": "127.0.0.0/8"})},
		{"/", backend, base(object{"policy": object{"tier": "anonymous"}, "history": object{}, "audit": "all"})},
	})
	for _, forwarded := range []string{"", "nonsense", "10.1.2.3"} {
		ask := func(path string) int {
			if forwarded == "" {
				return harness.Ask(t, harness.Get(tr.url+path)).Status
			}
			return harness.Ask(t, harness.Get(tr.url+path, "X-Forwarded-For", forwarded)).Status
		}
		if forwarded == "" {
			for _, path := range []string{"/key", "/config-exempt", "/exempt"} {
				ask(path)
			}
			ask("/key")
			ask("/config-exempt")
		}
		got := fmt.Sprint(ask("/key"), ask("/config-exempt"), ask("/exempt"))
		if want := "429 429 429"; got != want {
			t.Errorf("X-Forwarded-For %q: %s, want %s", forwarded, got, want)
		}
	}
	await(t, "the audit log", func() bool {
		return cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_audit WHERE decision = 'limited'") > 0
	})
	if n := cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_audit WHERE address IS NOT NULL"); n != 0 {
		t.Errorf("the audit log has %d addresses", n)
	}
	cluster.Execute(t, dsn, "INSERT INTO rate_limit_bans (network) VALUES ('127.0.0.0/8')")
	await(t, "a ban to hold", func() bool {
		return harness.Ask(t, harness.Get(tr.url+"/elsewhere")).Status == http.StatusForbidden
	})
}
