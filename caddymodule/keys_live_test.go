package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

// Short placeholders mean the same in JSON as in a Caddyfile.
func TestShortPlaceholdersInJSON(t *testing.T) {
	c := caddytest.Start(t, `:PORT`)
	config := strings.NewReplacer("PORT", c.Port, "PREFIX", c.Prefix()).
		Replace(`{"apps": {"http": {"servers": {"s": {
		"listen": [":PORT"],
		"routes": [{"handle": [{
			"handler": "pg_ratelimit", "dsn": "memory",
			"prefix": "PREFIX", "key": "{header.X-User}", "limit": "2 1m", "cost": "{header.X-Cost}",
			"zones": [{"prefix": "PREFIX_ip", "match": [{"path": ["/x"]}],
				"limit": "1 1m", "key": "{remote_ip}"}]
		}]}]}}}}}`)
	c.LoadJSON([]byte(config))
	c.Expect(http.StatusOK, "/", "X-User", "a", "X-Cost", "2")
	c.Expect(http.StatusTooManyRequests, "/", "X-User", "a")
	c.Expect(http.StatusOK, "/x", "X-User", "b")
	c.Expect(http.StatusTooManyRequests, "/x", "X-User", "b")
	c.Expect(http.StatusOK, "/", "X-User", "b")
}
