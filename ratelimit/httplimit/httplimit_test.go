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

// wrap returns next behind a middleware.
func wrap(t *testing.T, store ratelimit.Store, o httplimit.Options) http.Handler {
	t.Helper()
	limited, err := httplimit.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return limited(next)
}

// next is the handler that gets the requests that pass.
var next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })

func get(h http.Handler, remote string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = remote
	response := httptest.NewRecorder()
	h.ServeHTTP(response, r)
	return response
}

func TestEachAddressHasItsQuota(t *testing.T) {
	store := newStore(t)
	limit := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Hour}
	h := wrap(t, store, httplimit.Options{Limit: limit})
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
		if a.Code != step.status || a.Header().Get("X-RateLimit-Remaining") != step.remaining ||
			a.Header().Get("X-RateLimit-Limit") != "2" {
			t.Errorf("%s: %d with %v, want %d and %s left", step.remote, a.Code, a.Header(), step.status,
				step.remaining)
		}
		reset, err := strconv.ParseInt(a.Header().Get("X-RateLimit-Reset"), 10, 64)
		if at := time.Unix(reset, 0); err != nil || at.Before(before.Add(59*time.Minute)) ||
			at.After(before.Add(61*time.Minute)) {
			t.Errorf("%s: reset at %v, %v", step.remote, at, err)
		}
		body, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		if refused := step.status == http.StatusTooManyRequests; refused {
			after := a.Header().Get("Retry-After")
			if want := `{"error":"Too many requests","retryAfter":` + after + `}`; after == "" ||
				string(body) != want {
				t.Errorf("%s: Retry-After %q, and the body %s", step.remote, after, body)
			}
		} else if len(body) > 0 || a.Header().Get("Retry-After") != "" {
			t.Errorf("%s: passed, with %v and the body %s", step.remote, a.Header(), body)
		}
	}
}

// failing is a store that makes no decisions.
type failing struct {
	timeout time.Duration // of the last call
}

var errNoDecision = errors.New("no decision")

func (f *failing) Take(_ context.Context, timeout time.Duration, _ []ratelimit.Hit,
	_ []ratelimit.Decision) error {
	f.timeout = timeout
	return errNoDecision
}
func (*failing) Reset(context.Context, time.Duration, []ratelimit.Hit) error { return errNoDecision }
func (*failing) Close()                                                      {}

func TestAStoreThatFails(t *testing.T) {
	limit := &ratelimit.Limit{Prefix: "p", Events: 2, Window: time.Hour}
	for _, test := range []struct {
		deny    bool
		timeout time.Duration
		status  int
		want    time.Duration
	}{{false, 0, http.StatusTeapot, 250 * time.Millisecond},
		{true, time.Second, http.StatusServiceUnavailable, time.Second}} {
		store := &failing{}
		var reported []error
		o := httplimit.Options{Limit: limit, Timeout: test.timeout, DenyOnError: test.deny,
			OnError: func(r *http.Request, err error) {
				reported = append(reported, err)
			}}
		a := get(wrap(t, store, o), "@")
		if a.Code != test.status || a.Header().Get("X-RateLimit-Limit") != "" || store.timeout != test.want {
			t.Errorf("deny %v: %d, %v, asked with a timeout of %v", test.deny, a.Code, a.Header(),
				store.timeout)
		}
		if len(reported) != 1 || !errors.Is(reported[0], errNoDecision) {
			t.Errorf("deny %v: OnError was called with %v", test.deny, reported)
		}
		o.OnError = nil
		if a := get(wrap(t, store, o), "@"); a.Code != test.status {
			t.Errorf("deny %v, without OnError: %d", test.deny, a.Code)
		}
	}
}

// TestAHitWithoutALimit must not pass unnoticed.
func TestAHitWithoutALimit(t *testing.T) {
	for _, test := range []struct {
		deny   bool
		status int
	}{{false, http.StatusTeapot}, {true, http.StatusServiceUnavailable}} {
		for _, hit := range []ratelimit.Hit{{Key: "k", Cost: 1},
			{Limit: &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}, Key: "k"}} {
			var reported error
			h := wrap(t, newStore(t), httplimit.Options{
				Hits:        func(*http.Request) []ratelimit.Hit { return []ratelimit.Hit{hit} },
				DenyOnError: test.deny, OnError: func(_ *http.Request, err error) { reported = err },
			})
			var field *ratelimit.FieldError
			if response := get(h, "@"); response.Code != test.status || !errors.As(reported, &field) {
				t.Errorf("deny %v, %+v: %d, and OnError was called with %v", test.deny, hit,
					response.Code, reported)
			}
		}
	}
}

// A hit that is Apart refuses nothing, and no header describes it.
func TestAHitThatIsApartRefusesNothing(t *testing.T) {
	full := &ratelimit.Limit{Prefix: "full", Events: 1, Window: time.Hour}
	roomy := &ratelimit.Limit{Prefix: "roomy", Events: 5, Window: time.Hour}
	for quota, hits := range map[string][]ratelimit.Hit{
		"":  {{Limit: full, Key: "k", Cost: 2, Apart: true}},
		"5": {{Limit: full, Key: "k", Cost: 2, Apart: true}, {Limit: roomy, Key: "k", Cost: 1}},
	} {
		o := httplimit.Options{Hits: func(*http.Request) []ratelimit.Hit { return hits }}
		h := wrap(t, newStore(t), o)
		if a := get(h, "@"); a.Code != http.StatusTeapot || a.Header().Get("X-RateLimit-Limit") != quota {
			t.Errorf("%d with %v, want to pass with the quota %q", a.Code, a.Header(), quota)
		}
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	limit := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	store := newStore(t)
	for _, test := range []struct {
		store   ratelimit.Store
		options httplimit.Options
		field   string
	}{
		{nil, httplimit.Options{Limit: limit}, "store"},
		{store, httplimit.Options{}, "Limit"},
		{store, httplimit.Options{Limit: &ratelimit.Limit{Events: 1, Window: time.Hour}}, "prefix"},
		{store, httplimit.Options{Limit: &ratelimit.Limit{Prefix: "p", Window: time.Hour}}, "events"},
		{store, httplimit.Options{Limit: limit, Timeout: -1}, "Timeout"},
	} {
		_, err := httplimit.New(test.store, test.options)
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != test.field {
			t.Errorf("%+v: %v, want an error about %s", test.options, err, test.field)
		}
	}
}
