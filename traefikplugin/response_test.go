package traefikplugin

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"
)

// startProxied starts an upstream, and a server with the plugin that forwards requests to it.
func startProxied(t *testing.T, upstream http.HandlerFunc) *httptest.Server {
	t.Helper()
	behind := httptest.NewServer(upstream)
	t.Cleanup(behind.Close)
	target, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = 100 * time.Millisecond // Traefik's default
	server := httptest.NewServer(newMiddleware(t, t.Context(), newProcess(time.Minute), proxy, validConfig()))
	t.Cleanup(server.Close)
	return server
}

func TestHeadersAfterInformationalResponse(t *testing.T) {
	server := startProxied(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-RateLimit-Limit", "7")
		_, _ = io.WriteString(w, "hello")
	})
	for _, want := range []string{"[100] [99]", "[100] [98]"} {
		if got := limitHeaders(t, server); got != want {
			t.Errorf("headers %s, want %s", got, want)
		}
	}
}

// limitHeaders sends a request and returns X-RateLimit-Limit and X-RateLimit-Remaining of the response.
func limitHeaders(t *testing.T, server *httptest.Server) string {
	t.Helper()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return fmt.Sprint(response.Header["X-Ratelimit-Limit"], response.Header["X-Ratelimit-Remaining"])
}

// TestUpstreamWithoutHeadersGetsNativeWriter checks that an upstream gets the server's writer after maxWraps
// responses without X-RateLimit headers. A response with such a header then has two values. The later
// responses have only the limit's value again.
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
			{values: 1},
			{values: 1},
			{values: 1},
			{native: true, values: 1},
			{sends: true, native: true, values: 2},
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

func TestHeadersOfUpstreamRefusal(t *testing.T) {
	server := startProxied(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	if got, want := limitHeaders(t, server), "[100] [99]"; got != want {
		t.Errorf("headers %s, want %s", got, want)
	}
}

// TestHeadersOfInnerRefusal checks that a refusal by the second of two middlewares has that middleware's
// headers.
func TestHeadersOfInnerRefusal(t *testing.T) {
	p := newProcess(time.Minute)
	inner, outer := validConfig(), validConfig()
	inner.Other["prefix"], inner.Other["limit"] = "inner", "2 1h"
	h := newMiddleware(t, t.Context(), p,
		newMiddleware(t, t.Context(), p, http.NotFoundHandler(), inner), outer)
	for _, want := range []string{"404 [100] [99]", "404 [100] [98]", "429 [2] [0]"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		got := fmt.Sprint(w.Code, " ", w.Header()["X-Ratelimit-Limit"], w.Header()["X-Ratelimit-Remaining"])
		if got != want {
			t.Errorf("status and headers %s, want %s", got, want)
		}
	}
}

// TestHeadersOfEmptyResponse checks an upstream that writes nothing. The server then sends the headers.
func TestHeadersOfEmptyResponse(t *testing.T) {
	h := newMiddleware(t, t.Context(), newProcess(time.Minute),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("X-RateLimit-Limit", "7")
		}), validConfig())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if got := w.Header()["X-Ratelimit-Limit"]; len(got) != 1 || got[0] != "100" {
		t.Errorf("X-RateLimit-Limit %q, want 100", got)
	}
}

// TestFirstResponseHasOnlyLimitHeaders checks that, with the IETF's fields, even the first response has no
// fields of the upstream. The fields have a member for each of the two middlewares.
func TestFirstResponseHasOnlyLimitHeaders(t *testing.T) {
	p := newProcess(time.Minute)
	inner, outer := validConfig(), validConfig()
	inner.Other["prefix"], inner.Other["limit"], inner.Other["fields"], outer.Other["fields"] = "inner",
		"1 1h", "x ietf", "x ietf"
	h := newMiddleware(t, t.Context(), p,
		newMiddleware(t, t.Context(), p, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, name := range []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit"} {
				w.Header().Add(name, `"upstream"`)
			}
		}), inner), outer)
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if n := len(w.Header()["X-Ratelimit-Limit"]); w.Code != status || n != 1 {
			t.Errorf("status %d with %d values of X-RateLimit-Limit, want %d with 1", w.Code, n, status)
		}
		for _, name := range []string{"Ratelimit", "Ratelimit-Policy"} {
			if got := w.Header()[name]; len(got) != 1 || strings.Count(got[0], `";`) != 2 ||
				!strings.Contains(got[0], `, "inner";`) {
				t.Errorf("%s %q, want a member for each limit", name, got)
			}
		}
	}
}
