package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"
)

// Short placeholders mean the same in JSON as in a Caddyfile.
func TestShortPlaceholdersInJSON(t *testing.T) {
	c := start(t, `:PORT`)
	config := strings.NewReplacer("PORT", c.port, "PREFIX", c.prefix()).
		Replace(`{"apps": {"http": {"servers": {"s": {
		"listen": [":PORT"],
		"routes": [{"handle": [{
			"handler": "pg_ratelimit", "dsn": "memory",
			"prefix": "PREFIX", "key": "{header.X-User}", "limit": "2 1m", "cost": "{header.X-Cost}",
			"zones": [{"prefix": "PREFIX_ip", "match": [{"path": ["/x"]}],
				"limit": "1 1m", "key": "{remote_ip}"}]
		}]}]}}}}}`)
	c.loadJSON([]byte(config))
	c.expect(http.StatusOK, "/", "X-User", "a", "X-Cost", "2")
	c.expect(http.StatusTooManyRequests, "/", "X-User", "a")
	c.expect(http.StatusOK, "/x", "X-User", "b")
	c.expect(http.StatusTooManyRequests, "/x", "X-User", "b")
	c.expect(http.StatusOK, "/", "X-User", "b")
}
