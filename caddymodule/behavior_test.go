package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// X-RateLimit-Reset of a request that passes is the end of the window, which is 60 s after the first request,
// although a sliding window frees its whole quota only after up to 120 s. X-RateLimit-Reset of a refusal is
// the time of Retry-After. A refusal without Retry-After has no X-RateLimit-Reset.
func TestResetIsWindowEndOrRetryTime(t *testing.T) {
	c := start(t, `
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
		a := c.expect(test.status, "/", "X-Cost", "1")
		received := time.Now().Unix()
		reset := number(t, a, "X-RateLimit-Reset")
		if reset < start+test.ahead-5 || reset > received+test.ahead+1 {
			t.Errorf("status %d: got %v, want a reset %d s after %d", test.status, a.Header, test.ahead,
				start)
		}
		if test.status != http.StatusTooManyRequests {
			continue
		}
		if wait := number(t, a, "Retry-After"); reset < sent+wait-3 || reset > received+wait+3 {
			t.Errorf("headers %v of a request sent at %d, want a reset at Retry-After", a.Header, sent)
		}
	}
	a := c.expect(http.StatusTooManyRequests, "/", "X-Cost", "3")
	if a.Header["X-Ratelimit-Reset"] != nil || a.Header["Retry-After"] != nil {
		t.Errorf("a request that can never pass: got %v, want no reset and no Retry-After", a.Header)
	}
	check.Equal(t, "X-RateLimit-Limit", number(t, a, "X-RateLimit-Limit"), 2)
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

// An error page can cap the Retry-After of a long window and keep a shorter one.
func TestErrorPageCapsRetryAfter(t *testing.T) {
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
		if wait := number(t, a, "Retry-After"); wait > want || wait < want-60 {
			t.Errorf("%s: Retry-After is %d, want %d or up to a minute less", path, wait, want)
		}
		if len(a.Header["Retry-After"]) != 1 || a.Body != "later" {
			t.Errorf("%s: got %v and %q, want one Retry-After and the error page", path, a.Header, a.Body)
		}
	}
	if a := c.expect(http.StatusTooManyRequests, "/never"); a.Header["Retry-After"] != nil {
		t.Errorf("/never: got %v, want no Retry-After", a.Header)
	}
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
	c := start(t, `
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
		a := c.get("/")
		got := fmt.Sprint(a.Header["X-Ratelimit-Limit"], a.Header["X-Ratelimit-Remaining"], " ",
			len(a.Header["X-Ratelimit-Reset"]), " ", len(a.Header["Retry-After"]))
		if wait := a.Header.Get("Retry-After"); got != want || a.Body != "page" || wait == "7" {
			t.Errorf("request %d: %s and %q, Retry-After %s; want %s, the page, and no 7", i, got, a.Body,
				wait, want)
		}
	}
}
