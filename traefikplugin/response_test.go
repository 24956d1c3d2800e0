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

// proxied returns a server with a plugin that passes requests to an upstream.
func proxied(t *testing.T, upstream http.HandlerFunc) *httptest.Server {
	t.Helper()
	behind := httptest.NewServer(upstream)
	t.Cleanup(behind.Close)
	target, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = 100 * time.Millisecond // Traefik's default
	server := httptest.NewServer(open(t, t.Context(), newProcess(time.Minute), proxy, valid()))
	t.Cleanup(server.Close)
	return server
}

// An upstream's early hints change nothing in the headers of the response, from the first one on.
func TestHeadersAfterAnInformationalResponse(t *testing.T) {
	server := proxied(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-RateLimit-Limit", "7")
		_, _ = io.WriteString(w, "hello")
	})
	for _, want := range []string{"[100] [99]", "[100] [98]"} {
		if got := limitHeaders(t, server); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// limitHeaders sends a request, and returns two headers of the response.
func limitHeaders(t *testing.T, server *httptest.Server) string {
	t.Helper()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return fmt.Sprint(response.Header["X-Ratelimit-Limit"], response.Header["X-Ratelimit-Remaining"])
}

// An upstream that has sent no X-RateLimit headers of its own for a while gets the writer of the server,
// whichever of the headers it sends. After a response that has both, the later ones have those of the limit
// again.
func TestAnUpstreamWithoutHeadersGetsTheWriterOfTheServer(t *testing.T) {
	defer func(most int32) { maxWraps = most }(maxWraps)
	maxWraps = 3
	for _, name := range []string{"Limit", "Remaining", "Reset"} {
		w := httptest.NewRecorder()
		native, sends := false, true
		h := open(t, t.Context(), newProcess(time.Minute),
			http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) {
				native = got == http.ResponseWriter(w)
				if sends {
					got.Header().Add("X-RateLimit-"+name, "7")
				}
				got.WriteHeader(http.StatusOK)
			}), valid())
		for i, step := range []struct {
			sends, native bool
			values        int // of the header
		}{
			{false, false, 1}, {false, false, 1}, {false, false, 1}, {false, true, 1}, {true, true, 2},
			{true, false, 1}, {false, false, 1},
			{true, false, 1}, {false, false, 1}, {false, false, 1}, {false, false, 1}, {false, true, 1},
			{true, true, 2},
		} {
			w = httptest.NewRecorder()
			sends = step.sends
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			if n := len(w.Result().Header["X-Ratelimit-"+name]); n != step.values || native != step.native {
				t.Errorf("%s, response %d: %d values, the writer of the server: %t; want %d, %t", name, i+1,
					n, native, step.values, step.native)
			}
		}
	}
}

// An upstream's refusal has the headers of the limit.
func TestHeadersOfARefusalOfTheUpstream(t *testing.T) {
	server := proxied(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	if got := limitHeaders(t, server); got != "[100] [99]" {
		t.Errorf("headers %s", got)
	}
}

// If two middlewares limit a request, a refusal of the second one has its headers, whatever
// the first one has left.
func TestHeadersOfARefusalBehindAnotherLimit(t *testing.T) {
	p := newProcess(time.Minute)
	inner, outer := valid(), valid()
	inner.Other["prefix"], inner.Other["limit"] = "inner", "2 1h"
	h := open(t, t.Context(), p,
		open(t, t.Context(), p, http.NotFoundHandler(), inner), outer)
	for _, want := range []string{"404 [100] [99]", "404 [100] [98]", "429 [2] [0]"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if got := fmt.Sprint(w.Code, " ", w.Header()["X-Ratelimit-Limit"],
			w.Header()["X-Ratelimit-Remaining"]); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A handler that sends nothing gets status 200 from the server, with the headers of the limit.
func TestHeadersOfAnEmptyResponse(t *testing.T) {
	h := open(t, t.Context(), newProcess(time.Minute),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("X-RateLimit-Limit", "7")
		}), valid())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if got := w.Header()["X-Ratelimit-Limit"]; len(got) != 1 || got[0] != "100" {
		t.Errorf("X-RateLimit-Limit: %q", got)
	}
}

// With the fields of the IETF, the first response already has no others, and those of two middlewares stand
// together.
func TestTheFirstResponseHasTheFieldsOfTheLimitsAlone(t *testing.T) {
	p := newProcess(time.Minute)
	inner, outer := valid(), valid()
	inner.Other["prefix"], inner.Other["limit"], inner.Other["fields"], outer.Other["fields"] = "inner",
		"1 1h", "x ietf", "x ietf"
	h := open(t, t.Context(), p,
		open(t, t.Context(), p, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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
				t.Errorf("%s: %q, want a member of each limit", name, got)
			}
		}
	}
}
