package caddymodule_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

var tooMany = regexp.MustCompile(`^\{"error":"Too many requests","retryAfter":\d+\}$`)

// sitesWithErrorRoutes have LIMITED, a limit of one request, and differ in their error routes.
const sitesWithErrorRoutes = `
		http://none.test:PORT {
			LIMITED
		}
		http://all.test:PORT {
			LIMITED
			handle_errors {
				respond "PLACEHOLDERS"
			}
		}
		http://429.test:PORT {
			LIMITED
			handle_errors 429 {
				respond "for 429"
			}
		}
		http://4xx.test:PORT {
			LIMITED
			handle_errors 5xx {
				respond "for 5xx"
			}
			handle_errors 4xx {
				respond "for 4xx"
			}
		}
		http://404.test:PORT {
			LIMITED
			handle_errors 404 {
				respond "for 404"
			}
		}
		http://path.test:PORT {
			LIMITED
			handle_errors {
				@page path /page/*
				handle @page {
					respond "for a page"
				}
				handle /api/* {
				}
			}
		}
		http://rewritten.test:PORT {
			rewrite /old/* /new
			LIMITED
			handle_errors {
				handle /old/* {
					respond "for the old path"
				}
			}
		}
		http://group.test:PORT {
			LIMITED
			handle_errors {
				handle /api/* {
				}
				handle {
					respond "for the rest"
				}
			}
		}
		http://*.wild.test:PORT {
			LIMITED
			handle_errors {
				respond "for the wild"
			}
		}
		`

// Sites with and without error routes share a server.
func TestErrorRoutes(t *testing.T) {
	c := start(t, strings.NewReplacer("LIMITED", `
		pg_ratelimit PREFIX {
			dsn memory
			key {host}
			limit 1 1m
			algorithm fixed_window
		}`, "PLACEHOLDERS", `{err.status_code} {http.pg_ratelimit.prefix} {http.pg_ratelimit.key} `+
		`{http.pg_ratelimit.limit} {http.pg_ratelimit.remaining} {http.pg_ratelimit.retry_after}`).
		Replace(sitesWithErrorRoutes))
	for _, site := range []struct{ host, path, want string }{
		{"none.test", "/", ""},
		{"all.test", "/", fmt.Sprintf(`429 %s all\.test 1 0 [1-9]\d?`, c.prefix())},
		{"429.test", "/", "for 429"},
		{"4xx.test", "/", "for 4xx"},
		{"404.test", "/", ""},
		{"path.test", "/page/x", "for a page"},
		{"path.test", "/api/x", ""},
		{"path.test", "/", ""},
		{"rewritten.test", "/old/x", "for the old path"},
		{"rewritten.test", "/new", ""},
		{"group.test", "/api/x", ""},
		{"group.test", "/", "for the rest"},
		{"a.wild.test", "/", "for the wild"},
	} {
		c.get(site.path, "Host", site.host) // the first may pass
		a := c.expect(http.StatusTooManyRequests, site.path, "Host", site.host)
		if a.number(t, "Retry-After") < 1 || a.number(t, "X-RateLimit-Limit") != 1 {
			t.Errorf("%s%s: headers %v", site.host, site.path, a.Header)
		}
		want := tooMany
		if site.want != "" {
			want = regexp.MustCompile("^" + site.want + "$")
		}
		if !want.MatchString(a.Body) {
			t.Errorf("%s%s: body %q, want %v", site.host, site.path, a.Body, want)
		}
	}
}

// An error in an error route goes to no other route.
func TestALimitOnErrorPages(t *testing.T) {
	c := start(t, `
		:PORT {
			error 404
			handle_errors {
				route {
					pg_ratelimit PREFIX {
						dsn memory
						limit 1 1m
					}
					respond "page"
				}
			}
		}`)
	if a := c.expect(http.StatusNotFound, "/"); a.Body != "page" {
		t.Errorf("body %q", a.Body)
	}
	if a := c.expect(http.StatusTooManyRequests, "/"); !tooMany.MatchString(a.Body) {
		t.Errorf("body %q", a.Body)
	}
}

// Only JSON can give a subroute its own error routes.
func TestErrorRoutesOfASubroute(t *testing.T) {
	c := start(t, `:PORT`)
	c.loadJSON([]byte(strings.NewReplacer("PORT", c.port, "PREFIX", c.prefix()).
		Replace(`{"apps": {"http": {"servers": {"s": {
		"listen": [":PORT"],
		"routes": [{"handle": [{
			"handler": "subroute",
			"routes": [{"handle": [{"handler": "pg_ratelimit", "dsn": "memory", "prefix": "PREFIX",
				"limit": "1 1m"}]}],
			"errors": {"routes": [{"handle": [{"handler": "static_response", "status_code": 418,
				"body": "inner"}]}]}
		}]}]}}}}}`)))
	c.expect(http.StatusOK, "/")
	if a := c.expect(http.StatusTeapot, "/"); a.Body != "inner" {
		t.Errorf("body %q", a.Body)
	}
}
