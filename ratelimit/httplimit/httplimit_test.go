package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/httplimit"
)

func Example() {
	store := ratelimit.NewMemory(0, nil)
	defer store.Close()
	limit := &ratelimit.Limit{Prefix: "api", Events: 1, Window: time.Minute}
	handler := httplimit.Handler(store, httplimit.Options{Limit: limit}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello")
	}))
	for range 2 {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		fmt.Println(answer.Code, answer.Header().Get("X-RateLimit-Remaining"), answer.Body.Len() > 0)
	}
	// Output:
	// 200 0 true
	// 429 0 true
}

// next is the handler behind.
var next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })

func get(h http.Handler, remote string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = remote
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	return answer
}

func TestByAddress(t *testing.T) {
	store := ratelimit.NewMemory(0, nil)
	defer store.Close()
	limit := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour}
	h := httplimit.Handler(store, httplimit.Options{Limit: limit}, next)
	for _, step := range []struct {
		remote    string
		status    int
		remaining string
	}{
		{"192.0.2.1:1", http.StatusTeapot, "1"},
		{"192.0.2.1:2", http.StatusTeapot, "0"}, // another port is the same address
		{"192.0.2.1:1", http.StatusTooManyRequests, "0"},
		{"[2001:db8::1]:1", http.StatusTeapot, "1"},
		{"@", http.StatusTeapot, "1"}, // a Unix socket has none
		{"@", http.StatusTeapot, "0"},
	} {
		before := time.Now()
		a := get(h, step.remote)
		if a.Code != step.status || a.Header().Get("X-RateLimit-Remaining") != step.remaining || a.Header().Get("X-RateLimit-Limit") != "2" {
			t.Errorf("%s: %d with %v, want %d and %s left", step.remote, a.Code, a.Header(), step.status, step.remaining)
		}
		reset, err := strconv.ParseInt(a.Header().Get("X-RateLimit-Reset"), 10, 64)
		if at := time.Unix(reset, 0); err != nil || at.Before(before.Add(59*time.Minute)) || at.After(before.Add(61*time.Minute)) {
			t.Errorf("%s: reset at %v, %v", step.remote, at, err)
		}
		body, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		if refused := step.status == http.StatusTooManyRequests; refused {
			after := a.Header().Get("Retry-After")
			if want := `{"error":"Too many requests","retryAfter":` + after + `}`; after == "" || string(body) != want {
				t.Errorf("%s: Retry-After %q, and the body %s", step.remote, after, body)
			}
		} else if len(body) > 0 || a.Header().Get("Retry-After") != "" {
			t.Errorf("%s: passed, with %v and the body %s", step.remote, a.Header(), body)
		}
	}
}

func TestHits(t *testing.T) {
	store := ratelimit.NewMemory(0, nil)
	defer store.Close()
	limit := func(prefix string, events int64) *ratelimit.Limit {
		return &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: events, Window: time.Hour}
	}
	var hits []ratelimit.Hit
	h := httplimit.Handler(store, httplimit.Options{Hits: func(r *http.Request) []ratelimit.Hit { return hits }}, next)
	if a := get(h, "@"); a.Code != http.StatusTeapot || a.Header().Get("X-RateLimit-Limit") != "" {
		t.Errorf("without hits: %d, %v", a.Code, a.Header())
	}
	hits = []ratelimit.Hit{{Limit: limit("a", 5), Key: "k", Cost: 1}, {Limit: limit("b", 3), Key: "k", Cost: 2}}
	// The limit with the least left is told of.
	if a := get(h, "@"); a.Code != http.StatusTeapot || a.Header().Get("X-RateLimit-Limit") != "3" || a.Header().Get("X-RateLimit-Remaining") != "1" {
		t.Errorf("two limits: %d, %v", a.Code, a.Header())
	}
	if a := get(h, "@"); a.Code != http.StatusTooManyRequests || a.Header().Get("X-RateLimit-Limit") != "3" {
		t.Errorf("the second refuses: %d, %v", a.Code, a.Header())
	}
	// A cost that can never pass is not to be tried again.
	hits = hits[1:]
	hits[0].Cost = 4
	if a := get(h, "@"); a.Code != http.StatusTooManyRequests || a.Header().Get("Retry-After") != "" {
		t.Errorf("more than the quota: %d, %v", a.Code, a.Header())
	}
}

// failing is a store without decisions.
type failing struct {
	timeout time.Duration // that it was last asked with
}

var errNoDecision = errors.New("no decision")

func (f *failing) Take(_ context.Context, timeout time.Duration, _ []ratelimit.Hit, _ []ratelimit.Decision) error {
	f.timeout = timeout
	return errNoDecision
}
func (*failing) Reset(context.Context, time.Duration, []ratelimit.Hit) error { return errNoDecision }
func (*failing) Close()                                                      {}

func TestNoDecision(t *testing.T) {
	limit := &ratelimit.Limit{Prefix: "p", Events: 2, Window: time.Hour}
	for _, test := range []struct {
		deny    bool
		timeout time.Duration
		status  int
		want    time.Duration
	}{{false, 0, http.StatusTeapot, 250 * time.Millisecond}, {true, time.Second, http.StatusServiceUnavailable, time.Second}} {
		store := &failing{}
		var told []error
		o := httplimit.Options{Limit: limit, Timeout: test.timeout, DenyOnError: test.deny, OnError: func(r *http.Request, err error) {
			told = append(told, err)
		}}
		a := get(httplimit.Handler(store, o, next), "@")
		if a.Code != test.status || a.Header().Get("X-RateLimit-Limit") != "" || store.timeout != test.want {
			t.Errorf("deny %v: %d, %v, asked with a timeout of %v", test.deny, a.Code, a.Header(), store.timeout)
		}
		if len(told) != 1 || !errors.Is(told[0], errNoDecision) {
			t.Errorf("deny %v: told of %v", test.deny, told)
		}
		o.OnError = nil
		if a := get(httplimit.Handler(store, o, next), "@"); a.Code != test.status {
			t.Errorf("deny %v, nobody to tell: %d", test.deny, a.Code)
		}
	}
}
