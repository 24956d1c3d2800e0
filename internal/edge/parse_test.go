package edge

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func TestParseBurst(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "9007199254740992": ratelimit.MaxEvents} {
		if got, err := ParseBurst(text); got != want || err != nil {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "1.5", "9007199254740993", "many"} {
		_, err := ParseBurst(text)
		field, ok := err.(*ratelimit.FieldError)
		if !ok || field.Field != "burst" || field.Value != text {
			t.Errorf("%q: %v, want an error that names burst and the value", text, err)
		}
	}
}

func TestParseTimeout(t *testing.T) {
	for text, want := range map[string]time.Duration{"": DefaultTimeout, "1ms": time.Millisecond, "1m": time.Minute, "1.5s": 1500 * time.Millisecond} {
		if got, err := ParseTimeout(text); got != want || err != nil {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "0s", "-1s", "999us", "61s", "soon", "250"} {
		_, err := ParseTimeout(text)
		field, ok := err.(*ratelimit.FieldError)
		if !ok || field.Field != "timeout" || field.Value != text {
			t.Errorf("%q: %v, want an error that names timeout and the value", text, err)
		}
	}
}

// The headers share memory, which nobody may notice.
func TestSetHeaders(t *testing.T) {
	d := ratelimit.Decision{Limit: ratelimit.MaxEvents, Remaining: 0, Reset: time.Unix(1700000000, 1), RetryAfter: 1500 * time.Millisecond}
	a := Answer{Status: http.StatusTooManyRequests, Decision: &d}
	h := http.Header{}
	SetHeaders(h, &a)
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
	SetHeaders(h, &a)
	if _, ok := h["Retry-After"]; ok || len(h) != 3 {
		t.Errorf("a request that passes gets %v", h)
	}
}

func TestCredentials(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "proxy-authorization": true, "Cookie": true, "X-Api-Key": true, "apikey": true, "X-Auth-Token": true,
		"X-Gitlab-Token": true, "Private-Token": true, "X-Amz-Security-Token": true, "X-Goog-Api-Key": true, "X-Auth-Key": true, "X-Secret": true,
		"X-User": false, "User-Agent": false, "X-Forwarded-For": false, "X-Request-Id": false,
	} {
		if CredentialHeader(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestDoubts(t *testing.T) {
	for _, test := range []struct {
		limit ratelimit.Limit
		cost  int64
		want  int
	}{
		{ratelimit.Limit{Events: 10}, 10, 0}, {ratelimit.Limit{Events: 10}, 11, 1}, {ratelimit.Limit{Events: 10}, 0, 0},
		{ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Events: 10, Burst: 20}, 20, 0},
		{ratelimit.Limit{Events: 10, SynchronousCommit: true}, 1, 1}, {ratelimit.Limit{Events: 10, SynchronousCommit: true, Durable: true}, 1, 0},
		{ratelimit.Limit{Events: 10, SynchronousCommit: true}, 11, 2},
	} {
		if got := Doubts(&test.limit, test.cost); len(got) != test.want {
			t.Errorf("%+v, cost %d: %q", test.limit, test.cost, got)
		}
	}
}
