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

// outcomeOf returns the outcome of a request that limits alone decide.
func outcomeOf(hits []ratelimit.Hit, decisions []ratelimit.Decision) respond.Outcome {
	at := respond.Tightest(hits, decisions)
	o := respond.Outcome{Hit: at, Decision: &decisions[at], Requests: &decisions[at]}
	if !o.Decision.Allowed {
		o.Status = http.StatusTooManyRequests
	}
	return o
}

// If one of several limits can never admit the request, the headers describe this limit.
func TestNoRetryAfterForImpossibleRequest(t *testing.T) {
	limit := &ratelimit.Limit{}
	o := outcomeOf([]ratelimit.Hit{{Limit: limit}, {Limit: limit}, {Limit: limit}}, []ratelimit.Decision{
		{Quota: 1, RetryAfter: time.Hour}, {Quota: 2, RetryAfter: ratelimit.Never},
		{Quota: 3, RetryAfter: time.Minute},
	})
	h := http.Header{}
	respond.SetFields(h, settings.Fields{X: true}, nil, &o, nil, nil)
	got := fmt.Sprint(h["X-Ratelimit-Limit"], h["Retry-After"], o.Body())
	if want := `[2] []{"error":"Too many requests"}`; got != want {
		t.Errorf("limit, Retry-After and body are %s, want %s", got, want)
	}
}
