package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// If the authentication runs after the handler, and so too late to set the user, the log warns once.
func TestLateAuthenticationIsLoggedOnce(t *testing.T) {
	dsn := policytest.Open(t, policytest.People)
	c := caddytest.Start(t, strings.ReplaceAll(`
		:PORT {
			pg_ratelimit {
				dsn DSN
				timeout 10s
				policy {
					user {http.auth.user.id}
				}
			}
		}`, "DSN", dsn))
	c.Expect(http.StatusOK, "/")
	c.Expect(http.StatusOK, "/")
	const warning = "no authentication has run before this handler: put both into a route block, with " +
		"pg_ratelimit after the authentication"
	check.Equal(t, "the number of warnings", len(c.LogEntries(warning)), 1)
}
