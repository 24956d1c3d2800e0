package serve_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// tokenSite is a site with a limit of 1,000,000 units an hour.
type tokenSite struct {
	*serve.Site
	t     *testing.T
	costs chan string
	lines []string
}

func newTokenSite(t *testing.T, unit string) *tokenSite {
	t.Helper()
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	z, err := serve.NewZone(settings.Values{"prefix": "p", "limit": "1000000 1h", "algorithm": "fixed_window",
		"key": "k", "unit": unit, "output": "500"}, nil, parse)
	if err != nil {
		t.Fatal(err)
	}
	s := &tokenSite{t: t, costs: make(chan string, 9)}
	s.Site = &serve.Site{Store: store, Timeout: time.Second, Zones: []*serve.Zone{z},
		Settled: func(_ string, cost serve.SettledCost) { s.costs <- string(cost) },
		Log:     func(l host.Line) { s.lines = append(s.lines, fmt.Sprint(l.Err)) }}
	s.Prepare()
	return s
}

// decide decides a request with a body of 401 bytes.
func (s *tokenSite) decide(ctx context.Context, method string) *serve.Request {
	s.t.Helper()
	q := newRequest(s.Site, httptest.NewRequestWithContext(ctx, method, "/", strings.NewReader(
		strings.Repeat("x", 401))))
	q.HTTP.Header.Set("Accept-Encoding", "gzip")
	if err := serve.Handle(s.Site, q); err != nil {
		s.t.Fatal(err)
	}
	return q
}

// used returns the counted units, after the settlement of a request if it has one.
func (s *tokenSite) used(q *serve.Request) string {
	s.t.Helper()
	outcome := "-"
	if q.Settling != nil {
		outcome = <-s.costs
	}
	decisions := make([]ratelimit.Decision, 1)
	hit := ratelimit.Hit{Limit: s.Zones[0].Hit.Limit, Key: "k", Peek: true, Cost: 1}
	if err := s.Store.Take(s.t.Context(), time.Second, []ratelimit.Hit{hit}, decisions); err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprint(outcome, " ", 1000000-decisions[0].Remaining)
}

// answered sends a response to a request that passed.
func answered(q *serve.Request, status int, h http.Header, body []byte) {
	if q.Settling == nil {
		return
	}
	serve.ReadHeaders(status, h, q.Settling)
	for len(body) > 0 {
		n := min(len(body), 100)
		_, _ = serve.Write(io.Discard, body[:n], q.Settling)
		body = body[n:]
	}
	q.Settling.End(0, h)
}

// A unit counts its kinds of tokens, and charges its part of the estimate before the response.
func TestUnitSelectsKindsOfTokens(t *testing.T) {
	cached := llm.Answers(t)["anthropic/cached.json"]
	for unit, want := range map[string]string{"tokens": "601 more 4760", "input_tokens": "101 more 4746",
		"output_tokens": "500 less 14"} {
		s := newTokenSite(t, unit)
		q := s.decide(t.Context(), http.MethodPost)
		charged := q.Hits[0].Cost
		answered(q, http.StatusOK, http.Header{"Content-Type": {cached.ContentType}}, cached.Body)
		check.Equal(t, unit, fmt.Sprint(charged, " ", s.used(q)), want)
	}
}

// The rules for responses without usage. The charge is 601.
func TestResponsesWithoutUsage(t *testing.T) {
	const json, stream = "application/json", "text/event-stream"
	usage := `{"usage":{"prompt_tokens":5,"completion_tokens":2}}`
	event := "data: {\"choices\":[{\"delta\":{\"content\":\"abc\"}}]}\n\n"
	for _, c := range []struct {
		what, method string
		status       int // 0 without a response
		kind, body   string
		leaves, rest bool // the client leaves; a later handler reads the body
		want         string
	}{
		{what: "usage", status: 200, kind: json, body: usage, want: "less 7"},
		{what: "no usage", status: 200, kind: json, body: `{}`, want: "missing 601"},
		{what: "another type", status: 200, kind: "text/html", body: usage, want: "missing 601"},
		{what: "a cut body", status: 200, kind: json, body: usage[:20], leaves: true, want: "same 601"},
		{what: "a stream without usage", status: 200, kind: stream, body: event + event, want: "less 103"},
		{what: "an empty stream", status: 200, kind: stream, want: "less 101"},
		{what: "not modified", status: 304, want: "less 0"},
		{what: "an error", status: 400, kind: json, body: `{"error":"x"}`, want: "less 0"},
		{what: "an error with usage", status: 500, kind: json, body: usage, want: "less 7"},
		{what: "no upstream", status: -502, want: "less 0"},
		{what: "a route for errors that asks another upstream", status: -502, rest: true, want: "same 601"},
		{what: "a client that left", status: -502, leaves: true, want: "same 601"},
		{what: "another method", method: "PUT", status: 200, kind: json, body: usage, want: "same 601"},
		{what: "a failed delete", method: "DELETE", status: 404, want: "less 0"},
		{what: "GET", method: "GET", status: 200, kind: json, body: usage, want: "- 0"},
		{what: "HEAD", method: "HEAD", status: 200, want: "- 0"},
		{what: "OPTIONS", method: "OPTIONS", status: 204, want: "- 0"},
	} {
		s := newTokenSite(t, "tokens")
		if c.method == "" {
			c.method = http.MethodPost
		}
		ctx, leave := context.WithCancel(t.Context())
		q := s.decide(ctx, c.method)
		if c.leaves {
			leave()
		}
		if c.status < 0 {
			q.Settling.End(-c.status, http.Header{})
			q.Flight.End()
			if c.rest {
				_, _ = io.Copy(io.Discard, q.HTTP.Body)
			}
			leave()
		} else {
			answered(q, c.status, http.Header{"Content-Type": {c.kind}}, []byte(c.body))
		}
		// A stream without usage is settled, and counts as missing.
		got := s.used(q)
		if c.kind == stream {
			c.want = strings.Replace(c.want, "less", "missing", 1)
		}
		check.Equal(t, c.what, got, c.want)
		leave()
	}
}

// The upstream is asked for plain bodies only where a response is read. The log says once a minute what a
// stream needs.
func TestClientsOfOpenAIAreToldToIncludeUsage(t *testing.T) {
	s := newTokenSite(t, "tokens")
	for range 3 {
		q := s.decide(t.Context(), http.MethodPost)
		check.Equal(t, "Accept-Encoding", q.HTTP.Header.Get("Accept-Encoding"), "identity")
		h := http.Header{"Content-Type": {"text/event-stream"}}
		answered(q, http.StatusOK, h, []byte("data: [DONE]\n\n"))
		<-s.costs
	}
	check.Equal(t, "lines", s.lines, "[unit tokens: missing: must be in the response: for a stream, "+
		"clients of OpenAI ask for it with stream_options.include_usage]")
	q := s.decide(t.Context(), http.MethodGet)
	check.Equal(t, "Accept-Encoding of GET", q.HTTP.Header.Get("Accept-Encoding"), "gzip")
}
