package edge_test

import (
	"net/http"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The headers share memory, which must not show.
func TestHeadersOfARefusal(t *testing.T) {
	d := ratelimit.Decision{Limit: ratelimit.MaxEvents, Remaining: 0, Reset: time.Unix(1700000000, 1), RetryAfter: 1500 * time.Millisecond}
	o := edge.Outcome{Status: http.StatusTooManyRequests, Decision: &d}
	h := http.Header{}
	edge.SetHeaders(h, &o)
	h.Add("X-RateLimit-Limit", "x")
	h.Add("X-RateLimit-Remaining", "y")
	for name, want := range map[string]string{
		"X-RateLimit-Limit": "9007199254740992", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000001", "Retry-After": "2",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	d.Allowed = true
	h = http.Header{}
	edge.SetHeaders(h, &o)
	if _, ok := h["Retry-After"]; ok || len(h) != 3 {
		t.Errorf("a request that passes gets %v", h)
	}
}

// A refusal that never ends has no Retry-After, and is told before one that does.
func TestNoRetryAfterIfTheRequestCanNeverPass(t *testing.T) {
	o := edge.Judge(&edge.Request{Hits: make([]ratelimit.Hit, 3), Decisions: []ratelimit.Decision{{Limit: 1, RetryAfter: time.Hour}, {Limit: 2, RetryAfter: ratelimit.Never}, {Limit: 3, RetryAfter: time.Minute}}})
	h := http.Header{}
	edge.SetHeaders(h, &o)
	if h.Get("X-RateLimit-Limit") != "2" || h.Get("Retry-After") != "" || o.Body() != `{"error":"Too many requests"}` {
		t.Errorf("%v, %s", h, o.Body())
	}
}

// TestManyResponsesAreAsEach: SetAllHeaders does what SetHeaders and Refuse do for each
// response.
func TestManyResponsesAreAsEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SampledFrom([]int64{0, 1, 9, 99, 1_000_000, 1 << 62})
		waits := rapid.SampledFrom([]time.Duration{ratelimit.Never, time.Microsecond, time.Second, time.Second + 1, time.Hour, ratelimit.Never - 1})
		resets := rapid.SampledFrom([]time.Time{time.Unix(1_700_000_000, 0), time.Unix(1_700_000_000, 1000), time.Unix(1_700_000_001, 0), time.UnixMicro(1 << 60)})
		var responses []edge.Response
		for range rapid.IntRange(0, 6).Draw(t, "responses") {
			d := &ratelimit.Decision{Allowed: rapid.Bool().Draw(t, "allowed"), Limit: numbers.Draw(t, "limit"),
				Remaining: numbers.Draw(t, "remaining"), Reset: resets.Draw(t, "reset")}
			if !d.Allowed {
				d.RetryAfter = waits.Draw(t, "wait")
			}
			responses = append(responses, edge.Response{Header: http.Header{}, Decision: d})
		}
		edge.SetAllHeaders(responses)
		for i, r := range responses {
			q := &edge.Request{HTTP: &http.Request{}, Hits: make([]ratelimit.Hit, 1), Decisions: []ratelimit.Decision{*r.Decision}}
			q.Outcome = edge.Judge(q)
			want := http.Header{}
			edge.Respond(&edge.Site{Fields: edge.Fields{X: true}}, q, want)
			if !reflect.DeepEqual(r.Header, want) || r.Body != q.Body {
				t.Fatalf("response %d to %+v is %v %q, want %v %q", i, r.Decision, r.Header, r.Body, want, q.Body)
			}
			r.Header.Add("X-Ratelimit-Limit", "more")
		}
		for i, r := range responses {
			if got := r.Header.Get("X-Ratelimit-Remaining"); got == "more" {
				t.Fatalf("response %d: what was added to one header is in another", i)
			}
		}
	})
}
