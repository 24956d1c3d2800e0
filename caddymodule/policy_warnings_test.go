package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// The log says once that the authentication comes too late to tell the user.
func TestAnAuthenticationAfterThePolicyIsWarnedAbout(t *testing.T) {
	dsn := withPolicy(t, policytest.People)
	c := start(t, strings.ReplaceAll(`
		:PORT {
			pg_ratelimit {
				dsn DSN
				timeout 10s
				policy {
					user {http.auth.user.id}
				}
			}
		}`, "DSN", dsn))
	c.expect(http.StatusOK, "/")
	c.expect(http.StatusOK, "/")
	if n := len(c.lines("no authentication has run before this handler: put both into a route block, with " +
		"pg_ratelimit after the authentication")); n != 1 {
		t.Errorf("%d warnings, want one", n)
	}
}
