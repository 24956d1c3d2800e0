package gosnippets

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// The example of a limit on Postgres admits a request.
func TestOneLimitOnPostgres(t *testing.T) {
	t.Setenv("DATABASE_URL", cluster.Open(t))
	// The timeout of 250 ms may be too short for the first decision of a new
	// database on a busy machine.
	var err error
	for range 100 {
		if err = oneLimit(t.Context()); err == nil {
			return
		}
	}
	t.Error(err)
}

// The example of a middleware admits a request, and sends the quota of its limit.
func TestMiddlewareOfPageSendsLimit(t *testing.T) {
	limited, err := middleware(newStore(), &ratelimit.Limit{Prefix: "key", Events: 50, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	limited(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, "/api/", nil))
	if w.Code != http.StatusOK || w.Header().Get("X-RateLimit-Limit") != "50" {
		t.Errorf("%d %v, want 200 with a limit of 50", w.Code, w.Header())
	}
}

func newStore() ratelimit.Store {
	store, err := memory.New(memory.Options{})
	if err != nil {
		panic(err)
	}
	return store
}

// report prints an error, so that the output of an example has it.
func report(err error) {
	if err != nil {
		fmt.Println(err)
	}
}

func Example_severalLimits() {
	report(severalLimits(context.Background(), newStore()))
	// Output: true
}
