package caddymodule_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// keyShown is a Caddyfile with an error page that shows how a key is stored.
const keyShown = `
	:PORT {
		pg_ratelimit PREFIX_%d {
			dsn memory
			key %s
			limit 1 1m
			%s
		}
		handle_errors {
			respond "{http.pg_ratelimit.key}"
		}
	}`

func TestSecretKeysAreStoredAsDigests(t *testing.T) {
	secret := []string{"Authorization", "Bearer hunter2", "X-Api-Key", "hunter2", "Cookie", "session=hunter2; other=x", "X-User", "ann"}
	c := start(t, `:PORT`)
	for i, k := range []struct{ key, more, want string }{
		{`{client_ip}`, "", "127.0.0.1"},
		{`{header.X-User}`, "", "ann"},
		{`everybody`, "", "everybody"},
		{`"{header.X-User} {method}"`, "", "ann GET"},
		{`{header.X-Absent}`, "", ""},
		{`{header.Authorization}`, "", ratelimit.DigestKey("Bearer hunter2")},
		{`{header.x-api-key}`, "", ratelimit.DigestKey("hunter2")},
		{`{header.Cookie}`, "", ratelimit.DigestKey("session=hunter2; other=x")},
		{`{cookie.session}`, "", ratelimit.DigestKey("hunter2")},
		{`{query.api_key}`, "", ratelimit.DigestKey("hunter2")},
		{`{query.page}`, "", "7"},
		{`"{client_ip} {header.X-Api-Key}"`, "", ratelimit.DigestKey("127.0.0.1 hunter2")},
		{`{header.X-User}`, "hash_key", ratelimit.DigestKey("ann")},
		{`{cookie.other}`, "hash_key off", "x"},
	} {
		c.load(fmt.Sprintf(keyShown, i, k.key, k.more))
		c.expect(http.StatusOK, "/?api_key=hunter2&page=7", secret...)
		if got := c.expect(http.StatusTooManyRequests, "/?api_key=hunter2&page=7", secret...).body; got != k.want {
			t.Errorf("key %s %s is stored as %q, want %q", k.key, k.more, got, k.want)
		}
	}
	for _, entry := range c.lines("request refused") {
		if strings.Contains(fmt.Sprint(entry), "hunter2") {
			t.Errorf("a secret in the log: %v", entry)
		}
	}
}

func TestANetworkIsOneClient(t *testing.T) {
	const site = `
		{
			servers {
				%s
			}
		}
		:PORT {
			pg_ratelimit PREFIX_%d {
				dsn memory
				limit 1 1m
				ipv4_prefix 24
				ipv6_prefix 64
			}
			handle_errors {
				respond "{http.pg_ratelimit.key}"
			}
		}`
	c := start(t, fmt.Sprintf(site, "trusted_proxies static 127.0.0.1/32", 1))
	for address, key := range map[string]string{
		"2001:db8:1:2::1": "2001:db8:1:2::/64", "2001:db8:1:3::1": "2001:db8:1:3::/64", "192.0.2.1": "192.0.2.0/24", "192.0.3.1": "192.0.3.0/24",
	} {
		c.expect(http.StatusOK, "/", "X-Forwarded-For", address)
		neighbour := strings.TrimSuffix(address, "1") + "2"
		if got := c.expect(http.StatusTooManyRequests, "/", "X-Forwarded-For", neighbour).body; got != key {
			t.Errorf("the key of %s is %q, want %q", neighbour, got, key)
		}
	}
	// The header of a client that is not a trusted proxy has no effect.
	c.load(fmt.Sprintf(site, "", 2))
	c.expect(http.StatusOK, "/", "X-Forwarded-For", "192.0.2.1")
	if got := c.expect(http.StatusTooManyRequests, "/", "X-Forwarded-For", "198.51.100.1").body; got != "127.0.0.0/24" {
		t.Errorf("the key is %q", got)
	}
}

// Short placeholders mean the same in JSON as in a Caddyfile.
func TestShortPlaceholdersInJSON(t *testing.T) {
	c := start(t, `:PORT`)
	config := strings.NewReplacer("PORT", c.port, "PREFIX", c.prefix()).Replace(`{"apps": {"http": {"servers": {"s": {
		"listen": [":PORT"],
		"routes": [{"handle": [{
			"handler": "pg_ratelimit", "dsn": "memory",
			"prefix": "PREFIX", "key": "{header.X-User}", "limit": "2 1m", "cost": "{header.X-Cost}",
			"zones": [{"prefix": "PREFIX_ip", "match": [{"path": ["/x"]}], "limit": "1 1m", "key": "{remote_ip}"}]
		}]}]}}}}}`)
	c.loadJSON([]byte(config))
	c.expect(http.StatusOK, "/", "X-User", "a", "X-Cost", "2")
	c.expect(http.StatusTooManyRequests, "/", "X-User", "a")
	c.expect(http.StatusOK, "/x", "X-User", "b")
	c.expect(http.StatusTooManyRequests, "/x", "X-User", "b")
	c.expect(http.StatusOK, "/", "X-User", "b")
}

// After basic_auth, the key can be the user.
func TestEachAuthenticatedUserHasAQuota(t *testing.T) {
	const hash = "$2a$04$2Okko7Mq9J.4emMr2nwrQ.hwDArGR9PHK5WFIM7JYAult0Wk1yh1i" // of secret
	c := start(t, `
		:PORT {
			route {
				basic_auth {
					ann `+hash+`
					bob `+hash+`
				}
				pg_ratelimit PREFIX {
					dsn memory
					key {http.auth.user.id}
					limit 1 1m
				}
			}
		}`)
	for _, user := range []string{"ann", "bob"} {
		login := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":secret"))
		c.expect(http.StatusOK, "/", "Authorization", login)
		c.expect(http.StatusTooManyRequests, "/", "Authorization", login)
	}
	c.expect(http.StatusUnauthorized, "/")
}
