package serve

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TakeLocal returns the outcome of a request for which the store failed with err. With on_error local, or on
// a row for which another handler has decided so (store.ErrOwes), it decides the request in this process if
// it can.
func TakeLocal(s *Site, q *Request, err error) respond.Outcome {
	o := NoDecision(s.OnError, err)
	if o.RetryAfter > 0 && !canRefuse(q) {
		o.Status = 0
		o.RetryAfter = 0
		return o
	}
	local := (s.OnError == settings.Local || errors.Is(err, store.ErrOwes)) && o.RetryAfter == 0 &&
		!errors.Is(err, ratelimit.ErrClosed)
	inPostgres, ok := s.Store.(*store.Store)
	if !local || !ok || !inPostgres.TakeLocal(err, q.Hits, q.Decisions) {
		return o
	}
	SetOutcomes(q)
	o = q.Outcome
	o.Overage = 0 // an estimate, for which no client may be billed
	return o
}

// overloadedWait is the Retry-After of a request that ratelimit.ErrOverloaded refuses, and versionWait that
// of one that policy.ErrVersion refuses.
const (
	overloadedWait = time.Second
	versionWait    = 10 * time.Second
)

// NoDecision returns the outcome of a request without a decision because of err. After
// ratelimit.ErrOverloaded and policy.ErrVersion the request is refused whatever onError is, since the
// database answers.
func NoDecision(onError settings.OnError, err error) respond.Outcome {
	o := respond.Outcome{Kind: outcome.Failed, Reason: policy.Unavailable, Err: err}
	switch {
	case errors.Is(err, ratelimit.ErrOverloaded):
		o.Kind = outcome.Overloaded
		o.Reason = policy.NoReason
		o.RetryAfter = overloadedWait
	case errors.Is(err, ratelimit.ErrTimeout):
		o.Reason = policy.Timeout
	case errors.Is(err, policy.ErrVersion):
		o.RetryAfter = versionWait
	}
	if o.RetryAfter > 0 || onError == settings.Deny {
		o.Status = http.StatusServiceUnavailable
	}
	return o
}

// canRefuse reports whether a decision on one of the hits could have refused the request.
func canRefuse(q *Request) bool {
	for i := range q.Hits {
		h := &q.Hits[i]
		if !h.Independent && !h.Peek && h.Cost >= 0 && !q.Terms[i].Overage {
			return true
		}
	}
	return false
}

// LogNoDecision logs that no decision on a request was possible, and whether requests without a decision
// pass. It logs at most a line a second for all handlers on a database. Outage.Ended logs the end of the
// outage.
func LogNoDecision(q *Request) {
	line := host.Line{Level: host.Error, Text: "no decision: refusing requests", Err: q.Outcome.Err}
	if q.Outcome.Status == 0 {
		line.Level = host.Warn
		line.Text = "no decision: letting requests pass"
	}
	if s := q.Site; s.Outage != nil {
		s.Outage.Failed(s.Log, line, true, time.Now())
	}
}
