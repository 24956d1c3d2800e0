package respond_test

import (
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// outcomeOf returns the outcome of a request that limits alone decide.
func outcomeOf(hits []ratelimit.Hit, decisions []ratelimit.Decision) respond.Outcome {
	at := respond.Tightest(hits, decisions, nil)
	o := respond.Outcome{Hit: at, Decision: &decisions[at], Requests: &decisions[at]}
	if !o.Decision.Allowed {
		o.Status = http.StatusTooManyRequests
	}
	return o
}
