package caddymodule_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
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
		t.Error("the notice about memory was logged more than once")
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

func TestARequestGivesItsCost(t *testing.T) {
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

// With several handlers on a request, the headers are those of the limit with the least
// remaining, or of the limit that refuses.
func TestTheHeadersAreThoseOfTheTightestLimit(t *testing.T) {
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
	// A config without the handler in between keeps the counts, too.
	c.load(`:PORT`)
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	c.load(fmt.Sprintf(site, 3))
	c.expect(http.StatusTooManyRequests, "/")
}

// The log warns once for each database, and not about a password that is not in the
// configuration.
func TestTheLogWarnsOfAPasswordInTheConfiguration(t *testing.T) {
	t.Setenv("PG_RATELIMIT_TEST_PASSWORD", "hunter2")
	const site = `
		:PORT {
			pg_ratelimit PREFIX_1 {
				dsn postgres://u:%[1]s@127.0.0.1:1/PREFIX_%[2]s
				limit 3 1m
			}
			pg_ratelimit PREFIX_2 {
				dsn postgres://u:%[1]s@127.0.0.1:1/PREFIX_%[2]s
				limit 3 1m
			}
		}`
	const warning = "the dsn in the configuration holds a password, which the proxy's API and its debug log may show: put it into a file or into the environment"
	c := start(t, fmt.Sprintf(site, "{env.PG_RATELIMIT_TEST_PASSWORD}", "a"))
	if n := len(c.lines(warning)); n != 0 {
		t.Errorf("%d warnings of a password in the environment", n)
	}
	c.load(fmt.Sprintf(site, "hunter2", "b"))
	c.load(fmt.Sprintf(site, "hunter2", "b"))
	if n := len(c.lines(warning)); n != 1 {
		t.Errorf("%d warnings of a password in the configuration, want 1", n)
	}
}

// A request that passes two handlers with one prefix is charged twice, which is rarely
// meant.
func TestTheLogWarnsOfOnePrefixTwiceOnAPath(t *testing.T) {
	const site = `
		http://one.test:PORT {
			pg_ratelimit PREFIX_a {
				dsn memory
				limit 10 1m
				%s
			}
			handle /api/* {
				pg_ratelimit PREFIX_%s {
					dsn memory
					limit 10 1m
					%s
				}
			}
			handle {
				respond "other"
			}
		}
		http://two.test:PORT {
			handle {
				pg_ratelimit PREFIX_a {
					dsn memory
					limit 10 1m
				}
			}
		}`
	const warning = "another handler on the same path counts under this prefix: a request that reaches both is charged twice"
	c := start(t, fmt.Sprintf(site, "", "b", ""))
	if n := len(c.lines(warning)); n != 0 {
		t.Errorf("%d warnings about two prefixes", n)
	}
	c.load(fmt.Sprintf(site, "key one", "a", "key two"))
	if n := len(c.lines(warning)); n != 0 {
		t.Errorf("%d warnings about two keys", n)
	}
	c.load(fmt.Sprintf(site, "", "a", ""))
	if lines := c.lines(warning); len(lines) != 1 || lines[0]["prefix"] != c.prefix()+"_a" {
		t.Errorf("warnings %v, want one", lines)
	}
	a := c.expect(http.StatusOK, "/api/x", "Host", "one.test")
	if left := a.number(t, "X-RateLimit-Remaining"); left != 8 {
		t.Errorf("%d left of 10, want 8", left)
	}
}

// A site without a host, and a configuration in JSON, have no subroute.
func TestTheLogWarnsOfOnePrefixTwiceOnAServer(t *testing.T) {
	const warning = "another handler on the same path counts under this prefix: a request that reaches both is charged twice"
	c := start(t, ":PORT {\n\trespond ok\n}")
	limit := `{"handler": "pg_ratelimit", "dsn": "memory", "prefix": "` + c.prefix() + `", "limit": "10 1m"}`
	config := func(first, second string) []byte {
		return []byte(`{"apps": {"http": {"servers": {
			"first": {"listen": [":` + c.port + `"], "routes": [{"handle": [` + first + `]}]},
			"second": {"listen": ["127.0.0.1:0"], "routes": [{"handle": [` + second + `]}]}
		}}}}`)
	}
	c.loadJSON(config(limit, limit))
	if n := len(c.lines(warning)); n != 0 {
		t.Errorf("%d warnings about two servers", n)
	}
	for i, second := range []string{
		limit,
		`{"handler": "subroute", "routes": [{"handle": [` + limit + `]}]}`,
	} {
		c.loadJSON(config(limit+","+second, limit))
		if n := len(c.lines(warning)); n != i+1 {
			t.Errorf("%d warnings after two handlers and %s, want %d", n, second, i+1)
		}
	}
	if left := c.get("/").number(t, "X-RateLimit-Remaining"); left != 8 {
		t.Errorf("%d left of 10, want 8", left)
	}
}

// Two routes with matchers may be for different requests, and of two routes of a group only
// one is taken.
func TestTheLogWarnsOfOnePrefixTwiceOnlyIfOneRequestReachesBoth(t *testing.T) {
	const warning = "another handler on the same path counts under this prefix: a request that reaches both is charged twice"
	c := start(t, ":PORT {\n\trespond ok\n}")
	limit := `{"handler": "pg_ratelimit", "dsn": "memory", "prefix": "` + c.prefix() + `", "limit": "10 1m"}`
	zone := `{"handler": "pg_ratelimit", "dsn": "memory", "zones": [{"match": [{"path": ["/x"]}], "prefix": "` + c.prefix() + `", "limit": "10 1m"}]}`
	subroute := func(routes string) string { return `{"handler": "subroute", "routes": [` + routes + `]}` }
	one, two := `"match": [{"host": ["one.test"]}], `, `"match": [{"host": ["two.test"]}], `
	want := 0
	for _, test := range []struct {
		routes string
		warns  bool
	}{
		{`{` + one + `"handle": [` + limit + `]}, {` + two + `"handle": [` + limit + `]}`, false},
		{`{` + one + `"handle": [` + limit + `]}, {"handle": [` + limit + `]}`, true},
		{`{` + one + `"handle": [` + limit + `], "terminal": true}, {"handle": [` + limit + `]}`, false},
		{`{"group": "g", ` + one + `"handle": [` + limit + `]}, {"group": "g", "handle": [` + limit + `]}`, false},
		{`{` + one + `"handle": [` + limit + `, ` + subroute(`{`+two+`"handle": [`+limit+`]}`) + `]}`, true},
		{`{` + one + `"handle": [` + subroute(`{"handle": [`+limit+`]}, {`+two+`"handle": [`+limit+`]}`) + `]}`, true},
		{`{"handle": [` + subroute(`{`+one+`"handle": [`+limit+`]}`) + `, ` + subroute(`{`+two+`"handle": [`+limit+`]}`) + `]}`, false},
		{`{"handle": [` + subroute(`{`+one+`"handle": [`+limit+`], "terminal": true}`) + `, ` + limit + `]}`, false},
		{`{` + one + `"handle": [` + limit + `]}, {"handle": [` + zone + `]}`, false},
		{`{"handle": [` + limit + `, ` + zone + `]}`, true},
	} {
		c.loadJSON([]byte(`{"apps": {"http": {"servers": {"s": {"listen": [":` + c.port + `"], "routes": [` + test.routes + `]}}}}}`))
		if test.warns {
			want++
		}
		if n := len(c.lines(warning)); n != want {
			t.Errorf("%d warnings after the routes %s, want %d", n, test.routes, want)
			want = n
		}
	}
}

// The placeholders of Caddy follow what handlers behind a limit of requests in flight change, and error routes
// do not end with the slot.
func TestALimitInFlightLeavesTheRequestToCaddy(t *testing.T) {
	c := start(t, `
		:PORT {
			route {
				pg_ratelimit PREFIX {
					dsn memory
					algorithm in_flight
					limit 1
				}
				method PUT
				error /error {http.request.method} 500
				respond {http.request.method}
			}
			handle_errors 500 {
				reverse_proxy 127.0.0.1:PORT {
					rewrite /again
				}
			}
		}`)
	for _, path := range []string{"/", "/error"} {
		if a := c.get(path); a.body != http.MethodPut {
			t.Errorf("%s: %d, %q", path, a.status, a.body)
		}
	}
}

// Two handlers can settle by one header. The headers are those of the limit with less left.
func TestTwoHandlersSettleByOneHeader(t *testing.T) {
	for _, limits := range [][]string{{"100", "50"}, {"50", "100"}} {
		c := start(t, `
			:PORT {
				route {
					pg_ratelimit PREFIX_a {
						dsn memory
						limit `+limits[0]+` 1h
						settle header X-Tokens
					}
					pg_ratelimit PREFIX_b {
						dsn memory
						limit `+limits[1]+` 1h
						settle header X-Tokens
					}
					header X-Tokens 7
					respond "ok"
				}
			}`)
		c.expect(http.StatusOK, "/")
		if a := c.expect(http.StatusOK, "/"); a.header.Get("X-RateLimit-Remaining") != "42" || a.header.Get("X-Tokens") != "" {
			t.Errorf("%v: %v", limits, a.header)
		}
	}
}
