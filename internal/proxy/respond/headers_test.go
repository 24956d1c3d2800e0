package respond_test

import (
	"net/http"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The values of all headers share memory. Nevertheless, adding a value to one header changes no other.
func TestHeadersOfARefusal(t *testing.T) {
	d := ratelimit.Decision{Quota: ratelimit.MaxEvents, Remaining: 0, Reset: time.Unix(1700000000, 1),
		RetryAfter: 1500 * time.Millisecond}
	o := respond.Outcome{Status: http.StatusTooManyRequests, Decision: &d, Requests: &d}
	h := http.Header{}
	respond.SetFields(h, settings.Fields{X: true}, nil, &o, nil, nil)
	h.Add("X-RateLimit-Limit", "x")
	h.Add("X-RateLimit-Remaining", "y")
	for name, want := range map[string]string{
		"X-RateLimit-Limit": "9007199254740992", "X-RateLimit-Remaining": "0",
		"X-RateLimit-Reset": "1700000001", "Retry-After": "2",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	d.Allowed = true
	o.Status = 0
	h = http.Header{}
	respond.SetFields(h, settings.Fields{X: true}, nil, &o, nil, nil)
	if _, ok := h["Retry-After"]; ok || len(h) != 3 {
		t.Errorf("headers of a request that passes are %v, want three without Retry-After", h)
	}
}

// SetAllHeaders sets the same headers and bodies for many responses as SetFields does for each. The headers
// of a response share no memory that an added value could change.
func TestSetAllHeadersEqualsSetFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SampledFrom([]int64{0, 1, 9, 99, 1_000_000, 1 << 62})
		waits := rapid.SampledFrom([]time.Duration{ratelimit.Never, time.Microsecond, time.Second,
			time.Second + 1, time.Hour, ratelimit.Never - 1})
		resets := rapid.SampledFrom([]time.Time{time.Unix(1_700_000_000, 0), time.Unix(1_700_000_000, 1000),
			time.Unix(1_700_000_001, 0), time.UnixMicro(1 << 60)})
		var responses []respond.Response
		for range rapid.IntRange(0, 6).Draw(t, "responses") {
			d := &ratelimit.Decision{Allowed: rapid.Bool().Draw(t, "allowed"),
				Quota: numbers.Draw(t, "limit"), Remaining: numbers.Draw(t, "remaining"),
				Reset: resets.Draw(t, "reset")}
			if !d.Allowed {
				d.RetryAfter = waits.Draw(t, "wait")
			}
			responses = append(responses, respond.Response{Header: http.Header{}, Decision: d})
		}
		respond.SetAllHeaders(responses)
		for i, r := range responses {
			hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{}}}
			decisions := []ratelimit.Decision{*r.Decision}
			o := outcomeOf(hits, decisions)
			want, body := http.Header{}, ""
			respond.SetFields(want, settings.Fields{X: true}, nil, &o, hits, decisions)
			if o.Status != 0 {
				_, body = o.SetContent(want)
			}
			if !reflect.DeepEqual(r.Header, want) || r.Body != body {
				t.Fatalf("response %d to %+v: got %v %q, want %v %q", i, r.Decision, r.Header, r.Body, want,
					body)
			}
			r.Header.Add("X-Ratelimit-Limit", "more")
		}
		for i, r := range responses {
			if got := r.Header.Get("X-Ratelimit-Remaining"); got == "more" {
				t.Fatalf("response %d: X-RateLimit-Remaining is the value added to X-RateLimit-Limit", i)
			}
		}
	})
}
