package serve_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzTextsOfRequests uses any text as a prefix, a key and a header. The response must be valid.
func FuzzTextsOfRequests(f *testing.F) {
	for _, seed := range [][2]string{
		{"18446744073709551616", "0"}, {"-1", "+5"}, {"::ffff:192.0.2.1", "/a/../b?x;y"},
		{"2001:DB8::1%eth0", "//..//%2e"}, {"1.000", "é\n\"\\"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		q := newRequest(&serve.Site{Handler: settings.Handler{Fields: settings.Fields{X: true, IETF: true}}},
			&http.Request{})
		q.Decisions = []ratelimit.Decision{{Quota: 5, RetryAfter: time.Second}}
		q.Hits = []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: text, Events: 5, Window: time.Minute},
			Key: other, Cost: 1}}
		q.Terms = []*policy.Terms{{Status: 429}}
		serve.SetOutcomes(q)
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
			s, q := newSettled(t, settle)
			return s.answered(q, h, text, part)
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
