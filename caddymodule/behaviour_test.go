package caddymodule_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func TestARequestOverTheLimitIsRefused(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 3 1m
				algorithm fixed_window
			}
			respond "ok"
		}`)
	for left := int64(2); left >= 0; left-- {
		a := c.expect(http.StatusOK, "/")
		if a.body != "ok" || a.number(t, "X-RateLimit-Limit") != 3 || a.number(t, "X-RateLimit-Remaining") != left || a.header.Get("Retry-After") != "" {
			t.Fatalf("with %d left: %q, %v", left, a.body, a.header)
		}
		if reset := time.Until(time.Unix(a.number(t, "X-RateLimit-Reset"), 0)); reset < 55*time.Second || reset > 61*time.Second {
			t.Errorf("reset in %v, want a minute", reset)
		}
	}
	a := c.expect(http.StatusTooManyRequests, "/")
	retry := a.number(t, "Retry-After")
	if retry < 55 || retry > 60 {
		t.Errorf("Retry-After: %d, want about 60", retry)
	}
	if want := fmt.Sprintf(`{"error":"Too many requests","retryAfter":%d}`, retry); a.body != want {
		t.Errorf("body %s, want %s", a.body, want)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if a.number(t, "X-RateLimit-Limit") != 3 || a.number(t, "X-RateLimit-Remaining") != 0 {
		t.Errorf("headers %v", a.header)
	}
	denials := c.lines("request refused")
	if len(denials) != 1 || denials[0]["level"] != "debug" || denials[0]["prefix"] != c.prefix() || denials[0]["key"] != "127.0.0.1" {
		t.Errorf("denials in the log: %v", denials)
	}
	if len(c.lines("dsn is memory: limits are counted in this process only")) > 1 {
		t.Error("memory was announced more than once")
	}
}

func TestZonesAreAllOrNothing(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit {
				dsn memory
				zone PREFIX_user {
					key {header.X-User}
					limit 10 1m
					algorithm fixed_window
				}
				zone PREFIX_all {
					key all
					limit 15 1m
					algorithm fixed_window
				}
			}
		}`)
	passed := map[string]int{}
	for range 10 {
		for _, user := range []string{"a", "b", "c"} {
			a := c.get("/", "X-User", user)
			switch a.status {
			case http.StatusOK:
				passed[user]++
			case http.StatusTooManyRequests:
				if a.number(t, "X-RateLimit-Limit") != 15 {
					t.Errorf("refused by %v", a.header)
				}
			default:
				t.Fatalf("status %d", a.status)
			}
		}
	}
	if passed["a"] != 5 || passed["b"] != 5 || passed["c"] != 5 {
		t.Errorf("passed: %v, want 5 of each user", passed)
	}
	// A refused request was charged to neither: without the zone for all, each
	// user has what is left of ten.
	c.load(`
		:PORT {
			pg_ratelimit PREFIX_user {
				dsn memory
				key {header.X-User}
				limit 10 1m
				algorithm fixed_window
			}
		}`)
	if left := c.expect(http.StatusOK, "/", "X-User", "a").number(t, "X-RateLimit-Remaining"); left != 4 {
		t.Errorf("a has %d left, want 4", left)
	}
}

func TestAZoneIsForTheRequestsThatItMatches(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit {
				dsn memory
				zone PREFIX {
					match {
						path /api/*
						header X-Plan free
					}
					match path /trial
					limit 1 1m
				}
			}
		}`)
	for range 3 {
		if a := c.expect(http.StatusOK, "/api/x", "X-Plan", "paid"); a.header.Get("X-RateLimit-Limit") != "" {
			t.Error("a request without a limit has headers of one")
		}
	}
	c.expect(http.StatusOK, "/api/x", "X-Plan", "free")
	c.expect(http.StatusTooManyRequests, "/api/x", "X-Plan", "free")
	c.expect(http.StatusTooManyRequests, "/trial")
	c.expect(http.StatusOK, "/elsewhere")
}

func TestAHandlerIsForTheRequestsThatItsMatcherMatches(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit /api/* PREFIX {
				dsn memory
				limit 1 1m
			}
		}`)
	c.expect(http.StatusOK, "/api/x")
	c.expect(http.StatusTooManyRequests, "/api/x")
	c.expect(http.StatusOK, "/")
}

func TestCost(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				key {header.X-User}
				limit 10 1m
				algorithm fixed_window
				cost {header.X-Cost}
			}
		}`)
	for i, step := range []struct {
		cost   string
		status int
		left   int64
	}{
		{"", 200, 9}, {"4", 200, 5}, {"-3", 200, 4}, {"2.5", 200, 3}, {"many", 200, 2}, {"3", 429, 2}, {"2", 200, 0}, {"1", 429, 0},
	} {
		a := c.get("/", "X-User", "a", "X-Cost", step.cost)
		if a.status != step.status || a.number(t, "X-RateLimit-Remaining") != step.left {
			t.Errorf("%d, a cost of %q: %d with %s left, want %+v", i, step.cost, a.status, a.header.Get("X-RateLimit-Remaining"), step)
		}
	}
	// More than the whole quota can never pass.
	for _, cost := range []string{"11", "99999999999999999999"} {
		a := c.expect(http.StatusTooManyRequests, "/", "X-User", "b", "X-Cost", cost)
		if a.body != `{"error":"Too many requests"}` || a.header.Get("Retry-After") != "" {
			t.Errorf("a cost of %s: %s, %v", cost, a.body, a.header)
		}
	}
}

// Of several handlers on a request the limit with the least left is told, or
// the one that refuses.
func TestTheLimitWithTheLeastLeftIsTold(t *testing.T) {
	c := start(t, `
		:PORT {
			route {
				pg_ratelimit PREFIX_1 {
					dsn memory
					limit 5 1m
				}
				pg_ratelimit PREFIX_2 {
					dsn memory
					limit 50 1m
					zone PREFIX_3 {
						limit 40 1m
					}
				}
				pg_ratelimit /tight PREFIX_4 {
					dsn memory
					limit 2 1m
				}
				pg_ratelimit /dear PREFIX_5 {
					dsn memory
					limit 20 1m
					cost 15
				}
			}
		}`)
	for _, want := range []struct {
		path        string
		status      int
		limit, left int64
	}{
		{"/", 200, 5, 4}, {"/tight", 200, 2, 1}, {"/dear", 200, 5, 2}, {"/dear", 429, 20, 5}, {"/", 200, 5, 0}, {"/tight", 429, 5, 0},
	} {
		a := c.expect(want.status, want.path)
		if a.number(t, "X-RateLimit-Limit") != want.limit || a.number(t, "X-RateLimit-Remaining") != want.left {
			t.Errorf("%s: %v, want %+v", want.path, a.header, want)
		}
	}
}

// A Caddyfile for showing how a key is stored.
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

func TestKeys(t *testing.T) {
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

func TestClientAddresses(t *testing.T) {
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
	// From whom we do not trust, the header says nothing.
	c.load(fmt.Sprintf(site, "", 2))
	c.expect(http.StatusOK, "/", "X-Forwarded-For", "192.0.2.1")
	if got := c.expect(http.StatusTooManyRequests, "/", "X-Forwarded-For", "198.51.100.1").body; got != "127.0.0.0/24" {
		t.Errorf("the key is %q", got)
	}
}

// JSON is not rewritten as a Caddyfile is, but means the same.
func TestJSON(t *testing.T) {
	c := start(t, `:PORT`)
	config := strings.NewReplacer("PORT", c.port, "PREFIX", c.prefix()).Replace(`{"apps": {"http": {"servers": {"s": {
		"listen": [":PORT"],
		"routes": [{"handle": [{
			"handler": "pg_ratelimit", "dsn": "memory",
			"prefix": "PREFIX", "key": "{header.X-User}", "limit": "2 1m", "cost": "{header.X-Cost}",
			"zones": [{"prefix": "PREFIX_ip", "match": [{"path": ["/x"]}], "limit": "1 1m"}]
		}]}]}}}}}`)
	c.loadJSON([]byte(config))
	c.expect(http.StatusOK, "/", "X-User", "a", "X-Cost", "2")
	c.expect(http.StatusTooManyRequests, "/", "X-User", "a")
	c.expect(http.StatusOK, "/x", "X-User", "b")
	c.expect(http.StatusTooManyRequests, "/x", "X-User", "b")
	c.expect(http.StatusOK, "/", "X-User", "b")
}

func TestAReloadKeepsCounts(t *testing.T) {
	const site = `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 3 1m
			}
			respond "%d"
		}`
	c := start(t, fmt.Sprintf(site, 0))
	for i := range 3 {
		c.load(fmt.Sprintf(site, i))
		c.expect(http.StatusOK, "/")
	}
	// Not even a config without the handler in between forgets them.
	c.load(`:PORT`)
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	c.load(fmt.Sprintf(site, 3))
	c.expect(http.StatusTooManyRequests, "/")
}

func TestMetrics(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 2 1m
				zone PREFIX_loose {
					limit 100 1m
				}
			}
		}`)
	for range 5 {
		c.get("/")
	}
	context := caddy.ActiveContext()
	families, err := context.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			if strings.HasPrefix(name, "pg_ratelimit_") {
				got[name] = m.GetCounter().GetValue()
			}
		}
	}
	p := c.prefix()
	for name, want := range map[string]float64{
		"pg_ratelimit_decisions_total allowed " + p: 2, "pg_ratelimit_decisions_total denied " + p: 3, "pg_ratelimit_decisions_total error " + p: 0,
		"pg_ratelimit_decisions_total allowed " + p + "_loose": 2, "pg_ratelimit_decisions_total denied " + p + "_loose": 0,
		"pg_ratelimit_blocked_total " + p: 0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, want %v; of %v", name, value, want, got)
		}
	}
}
