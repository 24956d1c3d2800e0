package traefikplugin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// served counts the requests that pass.
type served struct{ n atomic.Int64 }

func (s *served) ServeHTTP(http.ResponseWriter, *http.Request) { s.n.Add(1) }

// open makes a middleware of a process.
func open(t *testing.T, ctx context.Context, p *process, next http.Handler, c *Config) *handler {
	t.Helper()
	h, err := newHandler(ctx, next, c, "test", p)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func ask(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w
}

func TestCountsInMemorySurviveAReload(t *testing.T) {
	p := newProcess(time.Hour)
	c := valid()
	c.Other["limit"], c.Other["timeout"] = "2 1h", "1ms"
	var next served
	for range 3 { // reloads: the old context ends before the new middleware is made
		ctx, cancel := context.WithCancel(t.Context())
		ask(open(t, ctx, p, &next, c))
		cancel()
	}
	if next.n.Load() != 2 {
		t.Errorf("%d requests passed over three reloads, want 2", next.n.Load())
	}
}

func TestAStoreThatNoMiddlewareUsesIsClosedAfterADelay(t *testing.T) {
	const delay = 200 * time.Millisecond
	p := newProcess(delay)
	c := valid()
	c.Other["limit"], c.Other["timeout"] = "2 1h", "1ms"
	ctx, cancel := context.WithCancel(t.Context())
	old := open(t, ctx, p, &served{}, c)
	ask(old)
	began := time.Now()
	cancel()
	await.Within(t, time.Minute, "the store to be closed", func() bool { return isClosed(old) })
	if took := time.Since(began); took < delay/2 {
		t.Errorf("the store was closed after %v, want %v", took, delay)
	}
	if len(p.host.Shared()) != 0 {
		t.Error("a closed store is still shared")
	}
	// An old middleware still works: with a full quota, since its store is new.
	if w := ask(old); w.Code != http.StatusOK || w.Header().Get("X-RateLimit-Remaining") != "1" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func isClosed(h *handler) bool {
	return errors.Is(h.use.Limits.Store.Take(context.Background(), 0, nil, nil), ratelimit.ErrClosed)
}

func TestMiddlewaresWithTheSameStoreSettingsShareADatabase(t *testing.T) {
	p := newProcess(time.Minute)
	databases := map[*host.Database]bool{}
	for _, change := range []func(*Config){
		func(c *Config) {},
		func(c *Config) { c.Other["prefix"], c.Other["limit"], c.Other["timeout"] = "other", "7 1h", "1s" },
		func(c *Config) { c.Other["maxConns"] = "3" },
		func(c *Config) { c.Other["dsn"] = "postgres://127.0.0.1:1/other" },
	} {
		c := valid()
		c.Other["dsn"] = "postgres://127.0.0.1:1/x?connect_timeout=1"
		change(c)
		databases[open(t, t.Context(), p, nil, c).use.Limits] = true
	}
	if len(databases) != 3 || len(p.host.Shared()) != 3 {
		t.Errorf("%d databases, want 3", len(databases))
	}
}

// broken is a store that panics, or fails.
type broken struct{ err error }

func (b *broken) Take(context.Context, time.Duration, []ratelimit.Hit, []ratelimit.Decision) error {
	if b.err == nil {
		panic("broken")
	}
	return b.err
}
func (b *broken) Reset(context.Context, time.Duration, []ratelimit.Hit) error { return nil }
func (b *broken) Close()                                                      {}

func TestOnErrorAppliesToFailuresAndPanics(t *testing.T) {
	for _, err := range []error{nil, errors.New("down")} {
		for onError, want := range map[string]int{"allow": http.StatusOK,
			"deny": http.StatusServiceUnavailable} {
			c := valid()
			c.Other["onError"] = onError
			var next served
			h := open(t, t.Context(), newProcess(time.Minute), &next, c)
			h.site.Store = &broken{err}
			w := ask(h)
			if w.Code != want || (next.n.Load() == 1) != (want == http.StatusOK) {
				t.Errorf("%v %s: %d, and next was called %d times", err, onError, w.Code, next.n.Load())
			}
			if want != http.StatusOK && w.Body.String() != `{"error":"Service unavailable"}` {
				t.Errorf("body %q", w.Body)
			}
		}
	}
}

// Each line of the log about an outage has its cause, and what happens to requests.
func TestTheLogHasTheCauseOfAnOutage(t *testing.T) {
	for onError, want := range map[string]string{
		"allow": "pg_ratelimit: middleware test: no decision: letting requests pass: ",
		"deny":  "pg_ratelimit: middleware test: no decision: refusing requests: ",
	} {
		c := valid()
		c.Other["dsn"], c.Other["onError"] = "postgres://u@127.0.0.1:1/db?sslmode=disable", onError
		h := open(t, t.Context(), newProcess(time.Minute), &served{}, c)
		// The log has one line a second at most, and the first one is of the database.
		output := loggedUntil(t, want, func() { ask(h) })
		for _, line := range strings.Split(strings.TrimSpace(output), "\n") {
			if !strings.Contains(line, "connection refused") {
				t.Errorf("a line without the cause: %s", line)
			}
		}
	}
}
