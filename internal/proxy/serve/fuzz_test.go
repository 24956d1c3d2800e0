package serve_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzTextsOfRequests uses any text as a cost, an address, a path or a query. The cost must refund nothing, a
// key must have one form, and the response must be valid.
func FuzzTextsOfRequests(f *testing.F) {
	for _, seed := range [][2]string{
		{"18446744073709551616", "0"}, {"-1", "+5"}, {"::ffff:192.0.2.1", "/a/../b?x;y"},
		{"2001:DB8::1%eth0", "//..//%2e"}, {"1.000", "é\n\"\\"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		if cost := serve.ParseCost(text); cost < 1 {
			t.Errorf("ParseCost(%q) = %d, want at least 1", text, cost)
		}
		for _, v4 := range []int{24, 32} {
			once := serve.Network(text, v4, 64)
			if twice := serve.Network(once, v4, 64); twice != once {
				t.Errorf("Network(%q) = %q, and Network of the result %q, want the same", text, once, twice)
			}
		}
		once := serve.NormalizePath(text)
		if twice := serve.NormalizePath(once); twice != once {
			t.Errorf("NormalizePath(%q) = %q, and of the result %q, want the same", text, once, twice)
		}
		if u, err := url.ParseRequestURI(text); err == nil {
			once := serve.CleanURL(u)
			if twice := serve.CleanURL(once); twice.String() != once.String() {
				t.Errorf("CleanURL(%q) = %q, and of the result %q, want the same", u, once, twice)
			}
			got, want := serve.QueryValues(once, "a"), serve.QueryValues(u, "a")
			if !slices.Equal(got, want) {
				t.Errorf("the query of CleanURL(%q) has a=%q, want %q", u, got, want)
			}
		}
		q := &serve.Request{HTTP: &http.Request{}, Decisions: []ratelimit.Decision{{Quota: 5,
			RetryAfter: time.Second}}}
		q.Hits = []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: text, Events: 5, Window: time.Minute},
			Key: other, Cost: 1}}
		q.Terms = []*policy.Terms{{Status: 429}}
		q.Outcome = serve.Judge(q)
		q.Site = &serve.Site{Fields: settings.Fields{X: true, IETF: true}}
		q.Writer = httptest.NewRecorder()
		h := q.Writer.Header()
		if serve.Respond(q); !json.Valid([]byte(q.Body)) {
			t.Errorf("the body is %q, want valid JSON", q.Body)
		}
		isInvalid := func(c rune) bool { return c < ' ' || c >= 0x7f }
		for name, values := range h {
			if len(values) != 1 || strings.ContainsFunc(values[0], isInvalid) {
				t.Errorf("%s is %q, want one value of printable ASCII", name, values)
			}
		}
		header := http.Header{"X-Ratelimit-Remaining": {text}}
		passed := respond.Outcome{Requests: &ratelimit.Decision{Allowed: true}}
		respond.SetFields(header, settings.Fields{X: true}, nil, &passed, nil, nil) // does not panic
	})
}

// FuzzAnswersOfUpstreams sends any response of an upstream in any parts. The cost must be from 0 to the
// largest quota and must not depend on the parts.
func FuzzAnswersOfUpstreams(f *testing.F) {
	for _, text := range []string{
		`{"usage":{"total_tokens":25}}`, "data: {\"usage\":{\"total_tokens\":5}}\n\ndata: [DONE]\n\n",
		"data:{\"usage\":\r\ndata:{\"total_tokens\":7}}\r\n\r\n", `{"usage":{"total_tokens":-1}}`,
		`{"usage":{"total_tokens":1e3}}`, `{"usage":{"total_tokens":99999999999999999999}}`,
		`{"usage":{"total_tokens":null}}`, "25", "9007199254740993",
	} {
		f.Add([]byte(text), uint16(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, part uint16) {
		if len(text) > 1<<16 {
			return
		}
		settled := func(settle string, h http.Header, part int) string {
			s := newSettling(t, settle)
			serve.ReadHeaders(http.StatusOK, h, s.Settling)
			for rest := range slices.Chunk(text, part) {
				_, _ = serve.Write(io.Discard, rest, s.Settling)
			}
			return s.settledUnits(t)
		}
		for _, contentType := range []string{"application/json", "text/event-stream"} {
			h := http.Header{"Content-Type": {contentType}}
			whole := settled("json usage.total_tokens", h, max(1, len(text)))
			if parts := settled("json usage.total_tokens", h, int(part)+1); parts != whole {
				t.Errorf("%s %q in parts of %d bytes: %s, want %s as for the whole", contentType, text,
					part+1, parts, whole)
			}
			if _, cost, _ := strings.Cut(whole, " "); strings.HasPrefix(cost, "-") || len(cost) > 16 {
				t.Errorf("%s %q: %s, want a cost from 0 to the largest quota", contentType, text, whole)
			}
		}
		got := settled("header X-Cost", http.Header{"X-Cost": {string(text)}}, 1<<16)
		if strings.Contains(got, " -") {
			t.Errorf("X-Cost %q: %s, want a cost of at least 0", text, got)
		}
	})
}
