package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// X-RateLimit-Reset of a request that passes is the end of the window, which is 60 s after the first request,
// although a sliding window frees its whole quota only after up to 120 s. X-RateLimit-Reset of a refusal is
// the time of Retry-After. A refusal without Retry-After has no X-RateLimit-Reset.
func TestResetIsWindowEndOrRetryTime(t *testing.T) {
	c := caddytest.Start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 2 1m
				cost {header.X-Cost}
			}
			respond "ok"
		}`)
	start := time.Now().Unix()
	for _, test := range []struct {
		status int
		ahead  int64 // the seconds from the first request to the reset
	}{{status: 200, ahead: 60}, {status: 200, ahead: 60}, {status: 429, ahead: 90}} {
		sent := time.Now().Unix()
		a := c.Expect(test.status, "/", "X-Cost", "1")
		received := time.Now().Unix()
		reset := caddytest.Number(t, a, "X-RateLimit-Reset")
		if reset < start+test.ahead-5 || reset > received+test.ahead+1 {
			t.Errorf("status %d: got %v, want a reset %d s after %d", test.status, a.Header, test.ahead,
				start)
		}
		if test.status != http.StatusTooManyRequests {
			continue
		}
		if wait := caddytest.Number(t, a, "Retry-After"); reset < sent+wait-3 || reset > received+wait+3 {
			t.Errorf("headers %v of a request sent at %d, want a reset at Retry-After", a.Header, sent)
		}
	}
	a := c.Expect(http.StatusTooManyRequests, "/", "X-Cost", "3")
	if a.Header["X-Ratelimit-Reset"] != nil || a.Header["Retry-After"] != nil {
		t.Errorf("a request that can never pass: got %v, want no reset and no Retry-After", a.Header)
	}
	check.Equal(t, "X-RateLimit-Limit", caddytest.Number(t, a, "X-RateLimit-Limit"), 2)
}

// Counts in memory survive a reload with another configuration, and a stop of Caddy.
func TestReloadKeepsCounts(t *testing.T) {
	const site = `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 3 1h
			}
			respond "%d"
		}`
	c := caddytest.Start(t, fmt.Sprintf(site, 0))
	for i := range 3 {
		c.Load(fmt.Sprintf(site, i))
		c.Expect(http.StatusOK, "/")
	}
	// A config without the handler in between also keeps the counts.
	c.Load(`:PORT`)
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	c.Load(fmt.Sprintf(site, 3))
	c.Expect(http.StatusTooManyRequests, "/")
}

// An upstream serves the error pages, and has a limit of its own. With the recipe of docs/caddy.md, a refusal
// and a request whose own upstream is dead have one value of each field, which is ours.
func TestErrorPageOfAnUpstreamHasFieldsOfTheLimit(t *testing.T) {
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
			"Retry-After"} {
			w.Header().Set(name, "7")
		}
		_, _ = io.WriteString(w, "page")
	}))
	t.Cleanup(pages.Close)
	c := caddytest.Start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 1 1h
			}
			reverse_proxy 127.0.0.1:1
			handle_errors {
				reverse_proxy `+pages.URL+` {
					header_down -X-RateLimit-*
					header_down -Retry-After
				}
			}
		}`)
	for i, want := range []string{"[1] [0] 1 0", "[1] [0] 1 1"} {
		a := c.Get("/")
		got := fmt.Sprint(a.Header["X-Ratelimit-Limit"], a.Header["X-Ratelimit-Remaining"], " ",
			len(a.Header["X-Ratelimit-Reset"]), " ", len(a.Header["Retry-After"]))
		if wait := a.Header.Get("Retry-After"); got != want || a.Body != "page" || wait == "7" {
			t.Errorf("request %d: %s and %q, Retry-After %s; want %s, the page, and no 7", i, got, a.Body,
				wait, want)
		}
	}
}
