package traefikplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// passCounter is an upstream that counts its requests.
type passCounter struct{ n atomic.Int64 }

func (c *passCounter) ServeHTTP(http.ResponseWriter, *http.Request) { c.n.Add(1) }

// newMiddleware returns a middleware of a process.
func newMiddleware(t *testing.T, ctx context.Context, p *process, next http.Handler, c *Config) *handler {
	t.Helper()
	h, err := newHandler(ctx, next, c, "test", p)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// get sends a GET request. headers are names and values in turn.
func get(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = []string{headers[i+1]}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Counts in memory survive reloads, although each reload creates a new middleware.
func TestMemoryCountsSurviveReload(t *testing.T) {
	p := newProcess(time.Hour)
	c := validConfig(Settings{"limit": "2 1h", "timeout": "1ms"})
	var next passCounter
	for range 3 { // at a reload, the old context may end before the new middleware is created
		ctx, cancel := context.WithCancel(t.Context())
		get(newMiddleware(t, ctx, p, &next, c))
		cancel()
	}
	if next.n.Load() != 2 {
		t.Errorf("%d requests passed over three reloads, want 2", next.n.Load())
	}
}

// When the last middleware of a store has ended, the store closes after a delay, and nothing stays open.
func TestUnusedStoreClosesAfterDelay(t *testing.T) {
	const delay = 200 * time.Millisecond
	p := newProcess(delay)
	c := validConfig(Settings{"limit": "2 1h", "timeout": "1ms"})
	ctx, cancel := context.WithCancel(t.Context())
	old := newMiddleware(t, ctx, p, &passCounter{}, c)
	get(old)
	start := time.Now()
	cancel()
	await.Within(t, time.Minute, "the end of the store", func() bool { return isClosed(old) })
	if elapsed := time.Since(start); elapsed < delay/2 {
		t.Errorf("the store was closed after %v, want %v", elapsed, delay)
	}
	if n := len(p.host.Shared()); n != 0 {
		t.Errorf("%d shared resources after the end of the store, want 0", n)
	}
	// The old middleware still works, with a full quota because its store is new.
	w := get(old)
	if remaining := w.Header().Get("X-RateLimit-Remaining"); w.Code != http.StatusOK || remaining != "1" {
		t.Errorf("status %d with %q remaining, want 200 with 1", w.Code, remaining)
	}
}

func isClosed(h *handler) bool {
	return errors.Is(h.databases.Limits.Store.Take(context.Background(), 0, nil, nil), ratelimit.ErrClosed)
}

// Of two middlewares of one load with limits of different windows on the same rows, the log names both, and
// both stay.
func TestLogNamesTwoWindowsOfOnePrefix(t *testing.T) {
	p := newProcess(time.Minute)
	load, end := context.WithCancel(t.Context())
	add := func(ctx context.Context, name string, settings Settings) string {
		return captureLog(t, func() {
			var next passCounter
			h, err := newHandler(ctx, &next, validConfig(settings), name, p)
			if err != nil {
				t.Fatal(err)
			}
			if get(h); next.n.Load() != 1 {
				t.Errorf("%s passes %d requests, want 1", name, next.n.Load())
			}
		})
	}
	want := `middleware b: prefix: "api": must be another name, because middleware b has fixed_window ` +
		"50 1h, and middleware a has fixed_window 5 5s"
	hour := Settings{"algorithm": "fixed_window", "limit": "50 1h"}
	log := add(load, "a", Settings{"algorithm": "fixed_window", "limit": "5 5s"})
	if log += add(load, "c", Settings{"prefix": "c", "limit": "9 1d"}); strings.Contains(log, "another") {
		t.Errorf("log %q, want no error", log)
	}
	if log = add(load, "b", hour); !strings.Contains(log, want) {
		t.Errorf("log %q, want %q", log, want)
	}
	if log = add(load, "b", hour); strings.Contains(log, "another") {
		t.Errorf("log %q of another router with the middleware, want no error", log)
	}
	end()
	next, stop := context.WithCancel(t.Context())
	defer stop()
	if log = add(next, "b", hour); strings.Contains(log, "another") {
		t.Errorf("log %q of a load with one of them, want no error", log)
	}
}

// brokenStore is a store with a Take that returns err, or panics if err is nil.
type brokenStore struct{ err error }

func (b *brokenStore) Take(context.Context, time.Duration, []ratelimit.Hit, []ratelimit.Decision) error {
	if b.err == nil {
		panic("broken")
	}
	return b.err
}
func (b *brokenStore) Reset(context.Context, time.Duration, []ratelimit.Hit) error { return nil }
func (b *brokenStore) Close()                                                      {}

// If the store fails or panics, onError decides on the request.
func TestOnErrorAppliesToFailuresAndPanics(t *testing.T) {
	for _, err := range []error{nil, errors.New("down")} {
		for onError, want := range map[string]string{
			"allow": "1 passed, status 200: ",
			"deny":  `0 passed, status 503: {"error":"Service unavailable"}`,
		} {
			var next passCounter
			h := newMiddleware(t, t.Context(), newProcess(time.Minute), &next,
				validConfig(Settings{"onError": onError}))
			h.site.Store = &brokenStore{err}
			w := get(h)
			got := fmt.Sprintf("%d passed, status %d: %s", next.n.Load(), w.Code, w.Body)
			if got != want {
				t.Errorf("error %v, onError %s: %s, want %s", err, onError, got, want)
			}
		}
	}
}

// Each line of the log about an outage has the cause. One of them says whether requests pass.
func TestLogHasCauseOfOutage(t *testing.T) {
	for onError, want := range map[string]string{
		"allow": "pg_ratelimit: middleware test: no decision: letting requests pass: ",
		"deny":  "pg_ratelimit: middleware test: no decision: refusing requests: ",
	} {
		h := newMiddleware(t, t.Context(), newProcess(time.Minute), &passCounter{}, validConfig(Settings{
			"dsn": "postgres://u@127.0.0.1:1/db?sslmode=disable", "onError": onError}))
		// The log has at most one line a second, and the first one is the database's.
		output := captureLogUntil(t, want, func() { get(h) })
		for _, line := range strings.Split(strings.TrimSpace(output), "\n") {
			ofOtherTest := strings.Contains(line, `on database "t_`) // its process ends later
			if !ofOtherTest && !strings.Contains(line, "connection refused") {
				t.Errorf("log line %s, want one with the cause", line)
			}
		}
	}
}
