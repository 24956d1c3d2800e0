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

// SetResponses sets the same headers and bodies for many responses as SetFields does for each. The headers
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
		respond.SetResponses(responses)
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
