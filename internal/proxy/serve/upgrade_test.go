package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// matchPost returns a Match of POST for a path.
func matchPost(path string) func(*http.Request) (bool, error) {
	return func(r *http.Request) (bool, error) {
		matches := r.Method == http.MethodPost && r.URL.Path == path
		return matches, nil
	}
}

// requestOf returns a request with a line such as GET /, and lines of headers, and its response.
func requestOf(t *testing.T, line string, headers []string) (*serve.Request, *httptest.ResponseRecorder) {
	t.Helper()
	method, target, _ := strings.Cut(line, " ")
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	q := &serve.Request{Writer: w}
	q.HTTP = r
	q.HTTP.Method = method
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		q.HTTP.Header.Add(name, value)
	}
	return q, w
}

// An upgrade would hide its tokens, so it is refused where a POST meets a limit of tokens. An offer of h2c,
// and another method in a header in any spelling, are removed there. A limit of requests for POST has no say.
// A call of gRPC, gRPC-Web or Connect is refused in its own form. The lines of the transcript are:
//
//	upgrade MODE LINE ~ HEADERS       the status and the form of a refusal, or 0 and the headers that pass
//	call GRPC VERSION LINE ~ HEADERS  a refused request, for a setting grpc and a version of HTTP: two
//	                                  statuses, of the response and the outcome, the type, and the length
func TestSpecialRequestsAreRecognized(t *testing.T) {
	golden.ReplayLines(t, "testdata/upgrades.txt", func(t *testing.T, kind, text string) string {
		headers := strings.Split(text, " ~ ")
		words := strings.SplitN(headers[0], " ", 2)
		if kind == "upgrade" {
			return upgraded(t, strings.TrimPrefix(words[0], "enforced"), words[1], headers[1:])
		}
		version, line, _ := strings.Cut(words[1], " ")
		return called(t, strings.TrimPrefix(words[0], "on"), version, line, headers[1:])
	})
}

// upgraded returns what becomes of a request to a site with limits for POST: of tokens for /v1, in a mode,
// and of requests for /v2.
func upgraded(t *testing.T, mode, line string, headers []string) string {
	t.Helper()
	s := kindSite(t, nil, settings.Values{"prefix": "tokens", "key": "k", "limit": "1000000 1h",
		"algorithm": "fixed_window", "unit": "tokens", "mode": mode},
		settings.Values{"prefix": "requests", "key": "k", "without_key": "refuse", "limit": "100 1m"})
	s.Zones[1].Key.Text = &reading.Text{}
	s.Zones[1].Key.Text.Add("header.X-Api-Key")
	s.Zones[0].Match, s.Zones[1].Match = matchPost("/v1"), matchPost("/v2")
	q, w := requestOf(t, line, headers)
	method := q.HTTP.Method
	if err := serve.Decide(s, q); err != nil {
		t.Fatal(err)
	}
	check.Equal(t, "the method", q.HTTP.Method, method)
	q.HTTP.Header.Del("Accept-Encoding") // of a request whose response is read
	got := fmt.Sprint(q.Outcome.Status)
	if h := w.Header(); q.Outcome.Status != 0 {
		got += fmt.Sprint(" ", h.Get("Connection"), " ", h.Get("Upgrade"), " ", q.Outcome.Text())
		if strings.HasPrefix(q.Body, `{"type":"error"`) {
			got += " object"
		}
	} else if len(q.HTTP.Header) > 0 {
		got = strings.NewReplacer("map[", " ", "]", "", ":[", "=", "] ", " ").Replace(
			got + fmt.Sprint(q.HTTP.Header))
	}
	return got
}

// called returns the second response to two requests on a limit of one.
func called(t *testing.T, grpc, version, line string, headers []string) string {
	t.Helper()
	s := kindSite(t, settings.Values{"grpc": grpc}, settings.Values{"prefix": "all", "key": "k",
		"limit": "1 60d", "algorithm": "sliding_log"})
	got := ""
	for range 2 {
		q, w := requestOf(t, line, headers)
		q.HTTP.ProtoMajor = int(version[0] - '0')
		if err := serve.Decide(s, q); err != nil {
			t.Fatal(err)
		}
		got = fmt.Sprint(q.Status, " ", q.Outcome.Status, " ", w.Header().Get("Content-Type"))
		if q.Body != "" {
			got += fmt.Sprint(" ", len(q.Body))
		}
	}
	return got
}
