package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/httplimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

func Example() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limit := &ratelimit.Limit{Prefix: "api", Events: 1, Window: time.Minute}
	limited, err := httplimit.New(store, httplimit.Options{Limit: limit})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	handler := limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello")
	}))
	for range 2 {
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, httptest.NewRequest("GET", "/", nil))
		fmt.Println(response.Code, response.Header().Get("X-RateLimit-Remaining"), response.Body.Len() > 0)
	}
	// Output:
	// 200 0 true
	// 429 0 true
}

// newStore returns a store in memory.
func newStore(t *testing.T) ratelimit.Store {
	t.Helper()
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// wrap returns the handler next behind a middleware.
func wrap(t *testing.T, store ratelimit.Store, o httplimit.Options) http.Handler {
	t.Helper()
	limited, err := httplimit.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return limited(next)
}

// next responds to the requests that pass.
var next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })

// get sends a request from an address.
func get(h http.Handler, remote string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = remote
	response := httptest.NewRecorder()
	h.ServeHTTP(response, r)
	return response
}

// Requests from one address share a quota, although their ports differ. All requests over Unix sockets share
// another quota.
func TestEachAddressHasItsQuota(t *testing.T) {
	store := newStore(t)
	limit := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour}
	h := wrap(t, store, httplimit.Options{Limit: limit})
	for _, step := range []struct {
		remote    string
		status    int
		remaining string
	}{
		{remote: "192.0.2.1:1", status: http.StatusTeapot, remaining: "1"},
		{remote: "192.0.2.1:2", status: http.StatusTeapot, remaining: "0"}, // the same address
		{remote: "192.0.2.1:1", status: http.StatusTooManyRequests, remaining: "0"},
		{remote: "[2001:db8::1]:1", status: http.StatusTeapot, remaining: "1"},
		{remote: "[2001:db8::2]:1", status: http.StatusTeapot, remaining: "0"}, // the same /64
		{remote: "@", status: http.StatusTeapot, remaining: "1"},               // a Unix socket
		{remote: "@", status: http.StatusTeapot, remaining: "0"},
	} {
		before := time.Now()
		response := get(h, step.remote)
		header := response.Header()
		if response.Code != step.status || header.Get("X-RateLimit-Remaining") != step.remaining ||
			header.Get("X-RateLimit-Limit") != "2" {
			t.Errorf("%s: status %d with %v, want %d and %s of 2 left", step.remote, response.Code, header,
				step.status, step.remaining)
		}
		seconds, err := strconv.ParseInt(header.Get("X-RateLimit-Reset"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		reset := time.Unix(seconds, 0).Sub(before)
		if reset < 59*time.Minute || reset > 61*time.Minute {
			t.Errorf("%s: reset in %v, want about an hour", step.remote, reset)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		after, want := header.Get("Retry-After"), ""
		if step.status == http.StatusTooManyRequests {
			want = `{"error":"Too many requests","retryAfter":` + after + `}`
		}
		if (after == "") != (want == "") || string(body) != want {
			t.Errorf("%s: Retry-After %q and body %q, want body %q", step.remote, after, body, want)
		}
	}
}

// failingStore is a store that makes no decisions.
type failingStore struct {
	timeout time.Duration // of the last call
}

var errNoDecision = errors.New("no decision")

func (s *failingStore) Take(_ context.Context, timeout time.Duration, _ []ratelimit.Hit,
	_ []ratelimit.Decision) error {
	s.timeout = timeout
	return errNoDecision
}
func (*failingStore) Reset(context.Context, time.Duration, []ratelimit.Hit) error {
	return errNoDecision
}
func (*failingStore) Close() {}

// If the store fails, a request passes, or with DenyOnError is refused. OnError gets the error. The store
// gets the timeout of the options, or the default.
func TestFailingStoreAdmitsUnlessDenyOnError(t *testing.T) {
	limit := &ratelimit.Limit{Prefix: "p", Events: 2, Window: time.Hour}
	for _, test := range []struct {
		deny    bool
		timeout time.Duration
		status  int
		want    time.Duration // the timeout of the store
	}{
		{deny: false, timeout: 0, status: http.StatusTeapot, want: 250 * time.Millisecond},
		{deny: true, timeout: time.Second, status: http.StatusServiceUnavailable, want: time.Second},
	} {
		store := &failingStore{}
		var reported []error
		o := httplimit.Options{Limit: limit, Timeout: test.timeout, DenyOnError: test.deny,
			OnError: func(_ *http.Request, err error) { reported = append(reported, err) }}
		response := get(wrap(t, store, o), "@")
		if response.Code != test.status || response.Header().Get("X-RateLimit-Limit") != "" {
			t.Errorf("deny %v: status %d with %v, want %d without headers", test.deny, response.Code,
				response.Header(), test.status)
		}
		if store.timeout != test.want {
			t.Errorf("deny %v: Take with the timeout %v, want %v", test.deny, store.timeout, test.want)
		}
		if len(reported) != 1 || !errors.Is(reported[0], errNoDecision) {
			t.Errorf("deny %v: OnError got %v, want one errNoDecision", test.deny, reported)
		}
		o.OnError = nil
		if response := get(wrap(t, store, o), "@"); response.Code != test.status {
			t.Errorf("deny %v, without OnError: status %d, want %d", test.deny, response.Code, test.status)
		}
	}
}

// A request passes although an Independent hit exceeds its limit. No header describes that limit.
func TestIndependentHitRefusesNothing(t *testing.T) {
	full := &ratelimit.Limit{Prefix: "full", Events: 1, Window: time.Hour}
	roomy := &ratelimit.Limit{Prefix: "roomy", Events: 5, Window: time.Hour}
	for quota, hits := range map[string][]ratelimit.Hit{
		"":  {{Limit: full, Key: "k", Cost: 2, Independent: true}},
		"5": {{Limit: full, Key: "k", Cost: 2, Independent: true}, {Limit: roomy, Key: "k", Cost: 1}},
	} {
		o := httplimit.Options{Hits: func(*http.Request) []ratelimit.Hit { return hits }}
		h := wrap(t, newStore(t), o)
		response := get(h, "@")
		got := response.Header().Get("X-RateLimit-Limit")
		if response.Code != http.StatusTeapot || got != quota {
			t.Errorf("status %d with the quota %q, want to pass with %q", response.Code, got, quota)
		}
	}
}

// The error of New names the option, or the field of the limit, that is missing or not valid.
func TestInvalidOptionsNameField(t *testing.T) {
	limit := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	store := newStore(t)
	for _, test := range []struct {
		store   ratelimit.Store
		options httplimit.Options
		field   string
	}{
		{store: nil, options: httplimit.Options{Limit: limit}, field: "store"},
		{store: store, options: httplimit.Options{}, field: "Limit"},
		{store: store, field: "algorithm", options: httplimit.Options{
			Limit: &ratelimit.Limit{Prefix: "p", Events: 1, Algorithm: ratelimit.InFlight}}},
		{store: store, field: "reserves", options: httplimit.Options{
			Limit: &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour, Reserves: true}}},
		{store: store, field: "prefix",
			options: httplimit.Options{Limit: &ratelimit.Limit{Events: 1, Window: time.Hour}}},
		{store: store, options: httplimit.Options{Limit: limit, Timeout: -1}, field: "Timeout"},
	} {
		_, err := httplimit.New(test.store, test.options)
		if conformance.FieldOf(err) != test.field {
			t.Errorf("New with %+v: error %v, want a FieldError for %s", test.options, err, test.field)
		}
	}
}
