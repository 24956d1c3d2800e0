package traefikplugin

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// upgradeRules has rules for upgrades. Each path has some of them.
//
//go:embed testdata/upgrades.sql
var upgradeRules string

// upgrade sends an upgrade.
func upgrade(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	headers = append(headers, "Connection", "Upgrade", "Upgrade", "websocket")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// An upgrade is refused if its sender, as a POST, would meet a limit of tokens or money, of its own or of a
// user above. Other limits do not count it. An unknown key, a ban and a block come first, a used-up limit
// does not.
func TestNoUpgradePassesBesideBudgetsForPost(t *testing.T) {
	h := policyMiddleware(t, policytest.Open(t, policytest.People+upgradeRules), func(*Config) {})
	golden.ReplayLines(t, "testdata/upgrades.lines", func(t *testing.T, user, path string) string {
		headers := []string{"X-User", user}
		if user == "key" {
			headers = append(headers, "Authorization", "Bearer rl_unknown")
		}
		w := upgrade(h, path, headers...)
		shown := fmt.Sprint(w.Code)
		if strings.HasPrefix(w.Body.String(), `{"type":"error","error":{"message"`) {
			shown += ", an object"
		}
		if remaining := w.Header().Get("X-RateLimit-Remaining"); w.Code == http.StatusOK && remaining != "" {
			shown += ", remaining " + remaining
		}
		return shown
	})
}

// While a sender cannot be looked up, its upgrades are refused where a limit of tokens could be its own.
func TestUpgradesOfUnreadSendersAreRefusedBesideBudgets(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+upgradeRules)
	h := policyMiddleware(t, dsn, func(c *Config) { c.Other["onError"] = "allow" })
	check.Equal(t, "while senders are read", upgrade(h, "/v1/responses", "X-User", "bob").Code, 200)
	cluster.Execute(t, dsn, "ALTER TABLE rate_limit_users RENAME TO gone")
	for path, want := range map[string]int{"/v1/responses": 426, "/other": 200, "/app/live": 200,
		"/v1/shut": 403} {
		check.Equal(t, path, upgrade(h, path, "X-User", "zoe").Code, want)
	}
}

// A preflight needs no key, and a request that only looks like one does.
func TestPreflightsAskForNoOtherMethod(t *testing.T) {
	h := policyMiddleware(t, policytest.Open(t, ""), func(c *Config) {
		c.Other["policy"] = Settings{"apiKey": "{header.Authorization}"}
	})
	for name, want := range map[string]int{"X-Any": 200, "Upgrade": 401, "X-Http-Method-Override": 401,
		"X-Http-Method": 401, "X-Method-Override": 401,
		"X_http_method_override": 401, "X-Http_method": 401, "x-method_Override": 401} {
		r := httptest.NewRequest(http.MethodOptions, "/", nil)
		r.Header = http.Header{"Origin": {"https://a.test"}, "Access-Control-Request-Method": {"GET"},
			name: {"POST"}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		check.Equal(t, name, w.Code, want)
	}
}
