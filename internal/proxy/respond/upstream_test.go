package respond_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Restore removes the X-RateLimit headers of the upstream, even a header for which the limit has no value,
// and keeps the upstream's Retry-After. If the proxy sets no headers, those of the upstream stay.
func TestHeadersOfUpstreamAreReplaced(t *testing.T) {
	for _, test := range []struct {
		reset time.Time
		want  string
	}{{time.Unix(1700000000, 0), "[10] [5] [1700000000] [7] [3]"}, {time.Time{}, "[10] [5] [] [7] [3]"}} {
		h := http.Header{}
		o := respond.Outcome{Overage: 7, Requests: &ratelimit.Decision{Allowed: true, Quota: 10, Remaining: 5,
			Reset: test.reset}}
		respond.SetFields(h, settings.Fields{X: true}, nil, &o, nil, nil)
		own := respond.HeadersIn(h, make(respond.Headers, respond.HeaderCount))
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
			"X-RateLimit-Overage", "RateLimit", "Retry-After"} {
			h.Add(name, "3")
		}
		respond.Restore(h, own)
		got := fmt.Sprint(h["X-Ratelimit-Limit"], h["X-Ratelimit-Remaining"], h["X-Ratelimit-Reset"],
			h["X-Ratelimit-Overage"], h["Ratelimit"])
		if got != test.want {
			t.Errorf("the X-RateLimit headers are %s, want %s", got, test.want)
		}
		if wait := h.Get("Retry-After"); wait != "3" {
			t.Errorf("Retry-After is %s, want the upstream's 3", wait)
		}
	}
	h := http.Header{"X-Ratelimit-Limit": {"3"}}
	if respond.Restore(h, nil); h.Get("X-RateLimit-Limit") != "3" {
		t.Errorf("without own headers, got %v, want the upstream's limit 3", h)
	}
}
