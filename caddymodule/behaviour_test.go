package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// With the default algorithm the first request shows the end of the window, and not when the whole quota is
// back. A refusal shows the moment of Retry-After, and nothing if the request can never pass.
func TestResetSaysWhenToComeAgain(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 2 1m
				cost {header.X-Cost}
			}
			respond "ok"
		}`)
	began := time.Now().Unix()
	for _, test := range []struct {
		status int
		ahead  int64 // of the first request
	}{{200, 60}, {200, 60}, {429, 90}} {
		asked := time.Now().Unix()
		a := c.expect(test.status, "/", "X-Cost", "1")
		answered := time.Now().Unix()
		reset := a.number(t, "X-RateLimit-Reset")
		if reset < began+test.ahead-5 || reset > answered+test.ahead+1 {
			t.Errorf("%d: %v, want a reset %d s after %d", test.status, a.Header, test.ahead, began)
		}
		if test.status == 429 && (reset < asked+a.number(t, "Retry-After")-3 || reset > answered+a.number(t,
			"Retry-After")+3) {
			t.Errorf("%v, asked at %d: want a reset at Retry-After", a.Header, asked)
		}
	}
	if a := c.expect(http.StatusTooManyRequests, "/", "X-Cost", "3"); a.Header["X-Ratelimit-Reset"] != nil ||
		a.Header["Retry-After"] != nil || a.number(t, "X-RateLimit-Limit") != 2 {
		t.Errorf("a request that can never pass: %v", a.Header)
	}
}

func TestAReloadKeepsCounts(t *testing.T) {
	const site = `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 3 1h
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

// The placeholders of Caddy follow what handlers behind a limit of requests in flight change, and error
// routes do not end with the slot.
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
		if a := c.get(path); a.Body != http.MethodPut {
			t.Errorf("%s: %d, %q", path, a.Status, a.Body)
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
		if a := c.expect(http.StatusOK, "/"); a.Header.Get("X-RateLimit-Remaining") != "42" ||
			a.Header.Get("X-Tokens") != "" {
			t.Errorf("%v: %v", limits, a.Header)
		}
	}
}

// A request reserves by the model that its body names, and the upstream gets the whole body.
func TestTheCostCanDependOnTheModel(t *testing.T) {
	c := start(t, `
		:PORT {
			request_body {
				max_size 1MB
			}
			map {http.request.body} {reserved.tokens} {
				~model\W+large 5000
				default 500
			}
			pg_ratelimit PREFIX {
				dsn memory
				limit 10000 1h
				cost {reserved.tokens}
			}
			respond {http.request.body}
		}`)
	for _, step := range []struct{ body, want string }{{`{"model": "large"}`, "5000"}, {`{"model": "small"}`,
		"4500"}, {"", "4000"}} {
		response, err := http.Post("http://127.0.0.1:"+c.port, "application/json",
			strings.NewReader(step.body))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if left := response.Header.Get("X-RateLimit-Remaining"); left != step.want ||
			string(got) != step.body {
			t.Errorf("%s: %s left, and the body %q; want %s", step.body, left, got, step.want)
		}
	}
}

// An error page can cap the Retry-After of a long window, and leave a shorter one.
func TestAnErrorPageCapsRetryAfter(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit {
				dsn memory
				zone PREFIX-month {
					match path /month
					algorithm fixed_window
					limit 1 52w
				}
				zone PREFIX-hour {
					match path /hour
					algorithm fixed_window
					limit 1 1h
				}
				zone PREFIX-never {
					match path /never
					cost 2
					limit 1 1h
				}
			}
			respond ok
			handle_errors 429 {
				@long vars_regexp {http.pg_ratelimit.retry_after} ^[0-9]{5}
				header @long Retry-After 7200
				respond "later"
			}
		}`)
	for path, want := range map[string]int64{"/month": 7200, "/hour": 3600} {
		c.expect(http.StatusOK, path)
		a := c.expect(http.StatusTooManyRequests, path)
		if wait := a.number(t, "Retry-After"); wait > want || wait < want-60 ||
			len(a.Header["Retry-After"]) != 1 || a.Body != "later" {
			t.Errorf("%s: %v, %s; want at most %d", path, a.Header, a.Body, want)
		}
	}
	if a := c.expect(http.StatusTooManyRequests, "/never"); a.Header["Retry-After"] != nil {
		t.Errorf("what never passes: %v", a.Header)
	}
}
