package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

// The error routes of a subroute, which only JSON can have, handle a refusal in the subroute.
func TestErrorRoutesOfSubrouteHandleRefusals(t *testing.T) {
	c := caddytest.Start(t, `:PORT`)
	c.LoadJSON([]byte(strings.NewReplacer("PORT", c.Port, "PREFIX", c.Prefix()).
		Replace(`{"apps": {"http": {"servers": {"s": {
		"listen": [":PORT"],
		"routes": [{"handle": [{
			"handler": "subroute",
			"routes": [{"handle": [{"handler": "pg_ratelimit", "dsn": "memory", "prefix": "PREFIX",
				"limit": "1 1m"}]}],
			"errors": {"routes": [{"handle": [{"handler": "static_response", "status_code": 418,
				"body": "inner"}]}]}
		}]}]}}}}}`)))
	c.Expect(http.StatusOK, "/")
	if a := c.Expect(http.StatusTeapot, "/"); a.Body != "inner" {
		t.Errorf("body %q, want inner, the body of the inner error route", a.Body)
	}
}
