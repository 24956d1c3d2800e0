package integration

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestAPolicyAloneInTraefik: a middleware may have a policy and no limit.
func TestAPolicyAloneInTraefik(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `SELECT rate_limit_rule('closed', action => 'block', paths => '{/alone/closed}');`)
	backend := startBackend(t)
	tr := startTraefik(t, []route{
		{"/alone", backend, object{"dsn": dsn, "timeout": "30s", "onError": "deny", "policy": object{"refresh": "500ms"}}},
		{"/empty", backend, object{"dsn": dsn, "policy": object{}}},
	})
	for path, want := range map[string]int{"/alone": http.StatusOK, "/alone/closed": http.StatusForbidden, "/empty": http.StatusOK} {
		if a := harness.Ask(t, harness.Get(tr.url+path)); a.Status != want {
			t.Errorf("%s: %d, want %d", path, a.Status, want)
		}
	}
}
