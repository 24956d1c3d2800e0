package caddymodule_test

import (
	"fmt"
	"net/http"
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
	// A config without the handler in between also keeps the counts.
	c.load(`:PORT`)
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	c.load(fmt.Sprintf(site, 3))
	c.expect(http.StatusTooManyRequests, "/")
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
