package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

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
