package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"
)

// The error routes of a subroute, which only JSON can have, handle a refusal in the subroute.
func TestErrorRoutesOfSubrouteHandleRefusals(t *testing.T) {
	c := start(t, `:PORT`)
	c.loadJSON([]byte(strings.NewReplacer("PORT", c.port, "PREFIX", c.prefix()).
		Replace(`{"apps": {"http": {"servers": {"s": {
		"listen": [":PORT"],
		"routes": [{"handle": [{
			"handler": "subroute",
			"routes": [{"handle": [{"handler": "pg_ratelimit", "dsn": "memory", "prefix": "PREFIX",
				"limit": "1 1m"}]}],
			"errors": {"routes": [{"handle": [{"handler": "static_response", "status_code": 418,
				"body": "inner"}]}]}
		}]}]}}}}}`)))
	c.expect(http.StatusOK, "/")
	if a := c.expect(http.StatusTeapot, "/"); a.Body != "inner" {
		t.Errorf("body %q, want inner, the body of the inner error route", a.Body)
	}
}
