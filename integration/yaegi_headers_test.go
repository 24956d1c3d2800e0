package integration

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestInterpretedHeadersOfAnUpstream sends requests through the interpreted plugin and a
// reverse proxy to an upstream that has limits of its own: an event stream, and one that
// changes the protocol.
func TestInterpretedHeadersOfAnUpstream(t *testing.T) {
	proceed := make(chan struct{}, 1)
	upstream := startLimited(t, proceed)
	target, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	p := loadPlugin(t)
	for headers, want := range map[string]int{"": 1, "both": 2, "ours": 1, "tighter": 1} { // how many X-RateLimit-Limit there are
		server := httptest.NewServer(p.mustHandler(t, httputil.NewSingleHostReverseProxy(target),
			object{"dsn": "memory", "prefix": "upstream" + headers, "limit": "100 1h", "headers": headers}))
		for request, parts := range map[string][]string{
			toUpgrade("/"): {"101", "hello"},
			toStream("/"):  {"200", "one", "two"},
		} {
			var got string
			ask := func() bool {
				got = exchange(t, server.Listener.Addr().String(), request, parts, proceed)
				return strings.Count(strings.ToLower(got), "x-ratelimit-limit: ") == want
			}
			if headers == "" { // the responses may have both until the first one has ended
				await(t, "the headers of the limit", ask)
			}
			ask()
			if n := strings.Count(strings.ToLower(got), "x-ratelimit-limit: "); n != want || !strings.Contains(strings.ToLower(got), "x-ratelimit-limit: 100") {
				t.Errorf("headers %q: response %q has the header %d times, want %d", headers, got, n, want)
			}
		}
		server.Close()
	}
}

// startLimited starts an upstream with limits of its own. It returns the URL.
func startLimited(t *testing.T, proceed <-chan struct{}) string {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-RateLimit-Limit: 7\r\n\r\nhello")
			return
		}
		w.Header().Set("X-RateLimit-Limit", "7")
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-proceed:
		case <-time.After(10 * time.Second):
			t.Error("the first part has not come")
		}
		_, _ = io.WriteString(w, "two")
	}))
	t.Cleanup(upstream.Close)
	return upstream.URL
}

// toUpgrade is a request to change the protocol, and toStream one for an event stream.
func toUpgrade(path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
}

func toStream(path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
}

// exchange sends a request, and returns the response when it has all parts, in order. After
// the part "one", the upstream may proceed.
func exchange(t *testing.T, address, request string, parts []string, proceed chan<- struct{}) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	reader, got := bufio.NewReader(conn), ""
	for _, part := range parts {
		for !strings.Contains(got, part) {
			text := make([]byte, 1024)
			n, err := reader.Read(text)
			got += string(text[:n])
			if err != nil {
				t.Fatalf("%v after %q, which has no %q", err, got, part)
			}
		}
		if part == "one" {
			proceed <- struct{}{}
		}
	}
	return got
}
