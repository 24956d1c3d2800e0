package traefikplugin

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"
)

// proxyTo returns a reverse proxy with Traefik's settings to an upstream.
func proxyTo(t *testing.T, upstream http.HandlerFunc) http.Handler {
	t.Helper()
	behind := httptest.NewServer(upstream)
	t.Cleanup(behind.Close)
	target, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = 100 * time.Millisecond // Traefik's default
	return proxy
}

// refuseWith returns an upstream that sends X-RateLimit-Remaining and another header with each status.
func refuseWith(name string, statuses ...int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(name, "7")
		w.Header().Set("X-RateLimit-Remaining", "0")
		for _, status := range statuses {
			w.WriteHeader(status)
		}
	}
}

// The client receives the limit's headers even if the upstream sets the same headers. If the second of two
// middlewares refuses, the client receives the second one's headers.
func TestClientReceivesHeadersOfTheLimit(t *testing.T) {
	for name, c := range map[string]struct {
		next http.Handler
		want []string // of each response: the status, X-RateLimit-Limit and X-RateLimit-Remaining
	}{
		"after an informational response": {
			next: proxyTo(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Link", "</a.css>")
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Set("X-RateLimit-Limit", "7")
				_, _ = io.WriteString(w, "hello")
			}),
			want: []string{"200 [100] [99]", "200 [100] [98]"},
		},
		"a refusal by the upstream": {
			next: proxyTo(t, refuseWith("X-RateLimit-Limit", http.StatusTooManyRequests)),
			want: []string{"429 [100] [99]"},
		},
		"a refusal by the upstream after an informational response": {
			next: proxyTo(t, refuseWith("X-RateLimit-Limit", http.StatusEarlyHints,
				http.StatusTooManyRequests)),
			want: []string{"429 [100] [99]"},
		},
		"a refusal by the upstream without its limit": {
			next: proxyTo(t, refuseWith("X-RateLimit-Reset", http.StatusTooManyRequests)),
			want: []string{"429 [100] [99]"},
		},
		"a handler that writes nothing": {
			next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Add("X-RateLimit-Limit", "7")
			}),
			want: []string{"200 [100] [99]"},
		},
		"a refusal by a second middleware": {
			next: newMiddleware(t, t.Context(), newProcess(time.Minute), http.NotFoundHandler(),
				validConfig(Settings{"prefix": "second", "limit": "2 1h"})),
			want: []string{"404 [100] [99]", "404 [100] [98]", "429 [2] [0]"},
		},
	} {
		server := httptest.NewServer(
			newMiddleware(t, t.Context(), newProcess(time.Minute), c.next, validConfig()))
		t.Cleanup(server.Close)
		for _, want := range c.want {
			response, err := http.Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			got := fmt.Sprint(response.StatusCode, " ", response.Header["X-Ratelimit-Limit"],
				response.Header["X-Ratelimit-Remaining"])
			if got != want {
				t.Errorf("%s: status and headers %s, want %s", name, got, want)
			}
		}
	}
}

// After maxWraps responses without an X-RateLimit header of the upstream, the upstream gets the server's own
// writer, to save time. If it then sets such a header, that response has two values, and the plugin wraps the
// writer again for the next maxWraps responses.
func TestUpstreamWithoutHeadersGetsNativeWriter(t *testing.T) {
	defer func(n int32) { maxWraps = n }(maxWraps)
	maxWraps = 3
	for _, name := range []string{"Limit", "Remaining", "Reset"} {
		w := httptest.NewRecorder()
		native, sends := false, true
		h := newMiddleware(t, t.Context(), newProcess(time.Minute),
			http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) {
				native = got == http.ResponseWriter(w)
				if sends {
					got.Header().Add("X-RateLimit-"+name, "7")
				}
				got.WriteHeader(http.StatusOK)
			}), validConfig())
		for i, step := range []struct {
			sends, native bool
			values        int // the number of values of the header
		}{
			// maxWraps responses without the header
			{values: 1},
			{values: 1},
			{values: 1},
			{native: true, values: 1},
			{sends: true, native: true, values: 2},
			// wrapped again: a header restarts the count of maxWraps responses
			{sends: true, values: 1},
			{values: 1},
			{sends: true, values: 1},
			{values: 1},
			{values: 1},
			{values: 1},
			{native: true, values: 1},
			{sends: true, native: true, values: 2},
		} {
			w = httptest.NewRecorder()
			sends = step.sends
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			if n := len(w.Result().Header["X-Ratelimit-"+name]); n != step.values || native != step.native {
				t.Errorf("%s, response %d: %d values, native writer %t; want %d, %t", name, i+1,
					n, native, step.values, step.native)
			}
		}
	}
}
