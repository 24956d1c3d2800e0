package serve_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzTextsOfRequests sends any text as a cost, an address, a path or a query. The cost must refund nothing,
// a key must have one form, and the response must be valid.
func FuzzTextsOfRequests(f *testing.F) {
	for _, seed := range [][2]string{
		{"18446744073709551616", "0"}, {"-1", "+5"}, {"::ffff:192.0.2.1", "/a/../b?x;y"},
		{"2001:DB8::1%eth0", "//..//%2e"}, {"1.000", "é\n\"\\"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		if cost := serve.ParseCost(text); cost < 1 {
			t.Errorf("the cost %q is %d", text, cost)
		}
		for _, v4 := range []int{24, 32} {
			if once := serve.Network(text, v4, 64); serve.Network(once, v4, 64) != once {
				t.Errorf("the network of %q is %q, and of that %q", text, once, serve.Network(once, v4, 64))
			}
		}
		if once := serve.Path(text); serve.Path(once) != once {
			t.Errorf("the path %q is %q, and of that %q", text, once, serve.Path(once))
		}
		if u, err := url.ParseRequestURI(text); err == nil {
			if once := serve.CleanURL(u); serve.CleanURL(once).String() != once.String() ||
				serve.QueryValue(once, "a") != serve.QueryValue(u, "a") {
				t.Errorf("the URL %q is %q, and of that %q", u, once, serve.CleanURL(once))
			}
		}
		q := &serve.Request{HTTP: &http.Request{}, Decisions: []ratelimit.Decision{{Limit: 5,
			RetryAfter: time.Second}}}
		q.Hits = []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: text, Events: 5, Window: time.Minute},
			Key: other, Cost: 1}}
		q.Outcome = serve.Judge(q)
		q.Site = &serve.Site{Fields: settings.Fields{X: true, IETF: true}}
		q.Writer = httptest.NewRecorder()
		h := q.Writer.Header()
		if serve.Respond(q); !json.Valid([]byte(q.Body)) {
			t.Errorf("the answer is %q", q.Body)
		}
		for name, values := range h {
			if len(values) != 1 || strings.ContainsFunc(values[0],
				func(c rune) bool { return c < ' ' || c >= 0x7f }) {
				t.Errorf("%s: %q", name, values)
			}
		}
		_ = respond.HasLessRemaining(http.Header{"X-Ratelimit-Remaining": {text}}, 5) // does not panic
	})
}

// FuzzAnswersOfUpstreams sends any response of an upstream in any parts. The cost must be from 0 to the
// largest quota, and must not depend on the parts.
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
		used := func(settle string, h http.Header, part int) string {
			s := newSettling(t, settle)
			serve.ReadHeaders(http.StatusOK, h, s.Settling)
			for rest := range slices.Chunk(text, part) {
				s.Body(rest)
			}
			return s.used(t)
		}
		for _, contentType := range []string{"application/json", "text/event-stream"} {
			h := http.Header{"Content-Type": {contentType}}
			whole := used("json usage.total_tokens", h, max(1, len(text)))
			if parts := used("json usage.total_tokens", h, int(part)+1); parts != whole {
				t.Errorf("%s %q: %s as a whole, and %s in parts of %d bytes", contentType, text, whole, parts,
					part+1)
			}
			if _, cost, _ := strings.Cut(whole, " "); strings.HasPrefix(cost, "-") || len(cost) > 16 {
				t.Errorf("%s %q: %s", contentType, text, whole)
			}
		}
		if got := used("header X-Cost", http.Header{"X-Cost": {string(text)}}, 1<<16); strings.Contains(got,
			" -") {
			t.Errorf("X-Cost: %q: %s", text, got)
		}
	})
}
