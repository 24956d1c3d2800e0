package respond_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// outcomeOf returns the outcome of a request that limits alone decide.
func outcomeOf(hits []ratelimit.Hit, decisions []ratelimit.Decision) respond.Outcome {
	at, shown := respond.Tightest(hits, decisions)
	o := respond.Outcome{Hit: at, Decision: &decisions[at], Shown: &decisions[shown]}
	if !o.Decision.Allowed {
		o.Status = http.StatusTooManyRequests
	}
	return o
}

// Of several refusals, the headers describe one that never ends.
func TestNoRetryAfterForImpossibleRequest(t *testing.T) {
	limit := &ratelimit.Limit{}
	o := outcomeOf([]ratelimit.Hit{{Limit: limit}, {Limit: limit}, {Limit: limit}}, []ratelimit.Decision{
		{Quota: 1, RetryAfter: time.Hour}, {Quota: 2, RetryAfter: ratelimit.Never},
		{Quota: 3, RetryAfter: time.Minute},
	})
	h := http.Header{}
	respond.SetFields(h, settings.Fields{X: true}, nil, &o, nil, nil)
	if h.Get("X-RateLimit-Limit") != "2" || h.Get("Retry-After") != "" ||
		o.Body() != `{"error":"Too many requests"}` {
		t.Errorf("got headers %v and body %s, want the limit 2 and no Retry-After", h, o.Body())
	}
}

func TestTightestIgnoresIndependentHits(t *testing.T) {
	limit := &ratelimit.Limit{}
	hits := []ratelimit.Hit{{Independent: true}, {Limit: limit}, {Limit: limit}}
	decisions := []ratelimit.Decision{{}, {Allowed: true, Remaining: 3}, {Allowed: true, Remaining: 2}}
	if at, _ := respond.Tightest(hits, decisions); at != 2 {
		t.Errorf("Tightest of all hits = %d, want 2", at)
	}
	if at, _ := respond.Tightest(hits[:1], decisions[:1]); at != -1 {
		t.Errorf("Tightest of independent hits = %d, want -1", at)
	}
}
