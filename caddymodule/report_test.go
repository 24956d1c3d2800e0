package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

func init() { caddy.RegisterModule(new(listener)) }

// listener is an event handler that keeps the events.
type listener struct{}

var heard struct {
	sync.Mutex
	events []map[string]any
}

func (*listener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.pg_ratelimit_test",
		New: func() caddy.Module { return new(listener) }}
}

func (*listener) UnmarshalCaddyfile(*caddyfile.Dispenser) error { return nil }

func (*listener) Handle(_ context.Context, e caddy.Event) error {
	heard.Lock()
	defer heard.Unlock()
	heard.events = append(heard.events, e.Data)
	return nil
}

// Refusals are events, at most one a second, for what listens to the app events.
func TestRefusalsAreEvents(t *testing.T) {
	c := start(t, `
		{
			events {
				on pg_ratelimit.refused pg_ratelimit_test
			}
		}
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				key {header.Authorization}
				limit 1 1h
				algorithm fixed_window
			}
			respond "ok"
		}`)
	began := time.Now()
	c.expect(http.StatusOK, "/", "Authorization", "secret")
	for range 20 {
		c.expect(http.StatusTooManyRequests, "/", "Authorization", "secret")
	}
	heard.Lock()
	defer heard.Unlock()
	if n, took := len(heard.events), time.Since(began); n < 1 || n > 1+int(took/time.Second) {
		t.Fatalf("%d events of 20 refusals in %v", n, took)
	}
	e := heard.events[0]
	wait, _ := e["wait"].(int64)
	if e["prefix"] != c.prefix() || !strings.HasPrefix(fmt.Sprint(e["key"]), "sha256:") || wait < 3500 ||
		wait > 3600 || e["status"] != http.StatusTooManyRequests || e["skipped"] != int64(0) {
		t.Errorf("the event is %v", e)
	}
}

// The access log can have the placeholders of refused requests and of requests that pass.
func TestTheAccessLogHasThePlaceholders(t *testing.T) {
	c := start(t, `
		:PORT {
			log
			route {
				log_append prefix {http.pg_ratelimit.prefix}
				log_append key {http.pg_ratelimit.key}
				log_append limit {http.pg_ratelimit.limit}
				log_append remaining {http.pg_ratelimit.remaining}
				log_append wait {http.pg_ratelimit.retry_after}
				pg_ratelimit {
					dsn memory
					zone PREFIX_a {
						key x
						limit 100 1h
					}
					zone PREFIX_b {
						match path /b
						key {header.X-Key}
						limit 2 1h
						algorithm fixed_window
					}
				}
				respond "ok"
			}
		}`)
	for _, path := range []string{"/", "/b", "/b"} {
		c.expect(http.StatusOK, path, "X-Key", "alice")
	}
	c.expect(http.StatusTooManyRequests, "/b", "X-Key", "alice")
	await.Within(t, time.Minute, "the access log has all requests",
		func() bool { return len(c.lines("handled request")) == 4 })
	lines := c.lines("handled request")
	for i, want := range []string{"a x 100 99 .", "b alice 2 1 .", "b alice 2 0 .", "b alice 2 0 3"} {
		if got := fmt.Sprint(lines[i]["prefix"], " ", lines[i]["key"], " ", lines[i]["limit"], " ",
			lines[i]["remaining"], " ", lines[i]["wait"], "."); !strings.HasPrefix(got, c.prefix()+"_"+want) {
			t.Errorf("line %d has %q, want %s", i, got, want)
		}
	}
}
