package caddymodule_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// An upstream may have limits of its own.
func TestHeadersOfAnUpstream(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		w.Header().Set("X-RateLimit-Remaining", "3")
		w.Header().Set("X-RateLimit-Reset", "5")
		w.Header().Set("Retry-After", "9")
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	const site = `
		:PORT {
			route {
				pg_ratelimit PREFIX_%d {
					dsn memory
					limit 100 1h
				}
				%s
				reverse_proxy %s
			}
		}`
	const inner = `
		encode gzip
		pg_ratelimit PREFIX_inner {
			dsn memory
			limit 50 1h
		}`
	c := start(t, ":PORT")
	for i, test := range []struct{ more, want string }{{"", "[100] [99]"}, {inner, "[50] [49]"}} {
		c.load(fmt.Sprintf(site, i, test.more, upstream.URL))
		a := c.expect(http.StatusOK, "/")
		if got := fmt.Sprint(a.Header["X-Ratelimit-Limit"], a.Header["X-Ratelimit-Remaining"]); got != test.want || a.Body != "hello" || a.Header.Get("Retry-After") != "9" {
			t.Errorf("%s %s, Retry-After %q; want %s", got, a.Body, a.Header["Retry-After"], test.want)
		}
	}
}

// The oldest Caddy that works clears the headers of a response when it has sent 103.
func TestHeadersStayAfterAnInformationalResponse(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		w.Header().Set("X-RateLimit-Remaining", "7")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(upstream.Close)
	dsn := withPolicy(t, `SELECT rate_limit_rule('over', count_by => '{user}', algorithm => 'fixed_window', per_hour => 1, on_exceed => 'overage');`)
	c := start(t, ":PORT")
	site := strings.NewReplacer("DSN", dsn, "LIMITS", "").Replace(policySite)
	before, _, _ := strings.Cut(site, "respond")
	c.load(before + "reverse_proxy " + upstream.URL + "\n}")
	c.expect(http.StatusOK, "/", "X-User", "ann")
	a := c.expect(http.StatusOK, "/", "X-User", "ann")
	if got := fmt.Sprint(a.Header["X-Ratelimit-Limit"], a.Header["X-Ratelimit-Remaining"], a.Header["X-Ratelimit-Overage"]); got != "[1] [0] [1]" || a.Body != "hello" {
		t.Errorf("%s %s", got, a.Body)
	}
}

// A response comes as the upstream sends it, and a connection can become one of another
// protocol.
func TestAResponseMayBeStreamedOrUpgraded(t *testing.T) {
	proceed := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
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
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		<-proceed
		_, _ = io.WriteString(w, "two")
	}))
	t.Cleanup(upstream.Close)
	c := start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 100 1h
			}
			reverse_proxy `+upstream.URL+`
		}`)
	for request, wants := range map[string][]string{
		"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n": {"101", "hello"},
		"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n":                    {"200", "one", "two"},
	} {
		conn, err := net.Dial("tcp", "127.0.0.1:"+c.port)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		reader, got := bufio.NewReader(conn), ""
		for _, want := range wants {
			for !strings.Contains(got, want) {
				line := make([]byte, 1024)
				n, err := reader.Read(line)
				got += string(line[:n])
				if err != nil {
					t.Fatalf("%v after %q, which has no %q", err, got, want)
				}
			}
			if want == "one" {
				close(proceed)
			}
		}
		conn.Close()
		if strings.Count(strings.ToLower(got), "x-ratelimit-limit: ") != 1 || !strings.Contains(strings.ToLower(got), "x-ratelimit-limit: 100") {
			t.Errorf("response %q", got)
		}
	}
}
