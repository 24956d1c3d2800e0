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
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
)

func init() { caddy.RegisterModule(new(listener)) }

// listener is an event handler that adds events to received.
type listener struct{}

var received struct {
	sync.Mutex
	events []map[string]any
}

func (*listener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.pg_ratelimit_test",
		New: func() caddy.Module { return new(listener) }}
}

func (*listener) UnmarshalCaddyfile(*caddyfile.Dispenser) error { return nil }

func (*listener) Handle(_ context.Context, e caddy.Event) error {
	received.Lock()
	defer received.Unlock()
	received.events = append(received.events, e.Data)
	return nil
}

// Refusals are sent to Caddy's app events, as at most one event a second.
func TestRefusalsAreEvents(t *testing.T) {
	c := caddytest.Start(t, `
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
	start := time.Now()
	c.Expect(http.StatusOK, "/", "Authorization", "secret")
	for range 20 {
		c.Expect(http.StatusTooManyRequests, "/", "Authorization", "secret")
	}
	received.Lock()
	defer received.Unlock()
	if n, took := len(received.events), time.Since(start); n < 1 || n > 1+int(took/time.Second) {
		t.Fatalf("%d events for 20 refusals in %v, want 1 a second", n, took)
	}
	e := received.events[0]
	got := fmt.Sprintf("%v, status %v, %v skipped, key %.7s", e["prefix"], e["status"], e["skipped"],
		e["key"])
	if want := c.Prefix() + ", status 429, 0 skipped, key sha256:"; got != want {
		t.Errorf("the event has %s, want %s", got, want)
	}
	if wait, _ := e["wait"].(int64); wait < 3500 || wait > 3600 {
		t.Errorf("the event has a wait of %d s, want about an hour", wait)
	}
}

// The access log has the placeholders of the limit, for requests that pass and for refused requests.
func TestAccessLogHasPlaceholders(t *testing.T) {
	c := caddytest.Start(t, `
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
		c.Expect(http.StatusOK, path, "X-Key", "alice")
	}
	c.Expect(http.StatusTooManyRequests, "/b", "X-Key", "alice")
	await.Within(t, time.Minute, "the access log has all requests",
		func() bool { return len(c.LogEntries("handled request")) == 4 })
	entries := c.LogEntries("handled request")
	for i, want := range []string{"a x 100 99 .", "b alice 2 1 .", "b alice 2 0 .", "b alice 2 0 3"} {
		e := entries[i]
		got := fmt.Sprintf("%v %v %v %v %v.", e["prefix"], e["key"], e["limit"], e["remaining"], e["wait"])
		if !strings.HasPrefix(got, c.Prefix()+"_"+want) {
			t.Errorf("entry %d has %q, want %s", i, got, want)
		}
	}
}
