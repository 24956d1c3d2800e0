package serve

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TakeLocal returns the outcome of a request for which the store failed with err. With on_error local it
// decides the request in this process if it can.
func TakeLocal(s *Site, q *Request, err error) respond.Outcome {
	overloaded := errors.Is(err, ratelimit.ErrOverloaded)
	if overloaded && !canRefuse(q) {
		return respond.Outcome{Err: err}
	}
	local := s.OnError == settings.Local && !overloaded && !errors.Is(err, ratelimit.ErrClosed)
	inPostgres, ok := s.Store.(*store.Store)
	if !local || !ok || !inPostgres.TakeLocal(err, q.Hits, q.Decisions) {
		return NoDecision(s.OnError, err)
	}
	outcome := Judge(q)
	outcome.Overage = 0 // an estimate, for which no client may be billed
	return outcome
}

// overloadedWait is the Retry-After of a request that ratelimit.ErrOverloaded refuses.
const overloadedWait = time.Second

// NoDecision returns the outcome of a request without a decision because of err. After
// ratelimit.ErrOverloaded the request is refused whatever onError is, since the database answers.
func NoDecision(onError settings.OnError, err error) respond.Outcome {
	o := respond.Outcome{Err: err}
	if errors.Is(err, ratelimit.ErrOverloaded) {
		o.Wait = overloadedWait
	}
	if o.Wait > 0 || onError == settings.Deny {
		o.Status = http.StatusServiceUnavailable
	}
	return o
}

// canRefuse reports whether a decision on one of the hits could have refused the request.
func canRefuse(q *Request) bool {
	for i := range q.Hits {
		h := &q.Hits[i]
		m := MarkOf(q, i)
		if !h.Independent && !h.Peek && h.Cost >= 0 && (m == nil || !m.Overage) {
			return true
		}
	}
	return false
}

// MarkOf returns the mark of a hit of the policy, or nil for a hit of the configuration. The hits of the
// policy are the last.
func MarkOf(q *Request, i int) *policy.Mark {
	marks := q.Verdict.Marks
	if i += len(marks) - len(q.Hits); i >= 0 {
		return marks[i]
	}
	return nil
}

// wouldRefuse reports whether a limit in the mode shadow would have refused its hit.
func wouldRefuse(h *ratelimit.Hit, d *ratelimit.Decision) bool {
	return h.Independent && !d.Allowed && d.Source != ratelimit.Undecided
}

// Judge returns the outcome of a request from its Decisions, one for each of its Hits. The policy's hits come
// last. Hits that are Independent never refuse. Judge converts a decision on a limit with overage to a
// decision on its quota.
func Judge(q *Request) respond.Outcome {
	decisions := q.Decisions
	overage := int64(0)
	over := 0 // the index of the hit with the overage
	out := respond.Outcome{}
	for i := range decisions {
		h := &q.Hits[i]
		d := &decisions[i]
		m := MarkOf(q, i)
		if m != nil && m.Overage {
			if beyond := countQuota(d, m.Quota); beyond > overage && !m.Shadow {
				overage = beyond
				over = i
			}
		}
		if wouldRefuse(h, d) && h.Cost-d.Remaining > out.ExceededBy {
			out.Exceeded = i
			out.ExceededBy = h.Cost - d.Remaining
		}
	}
	at, shown := respond.Tightest(q.Hits, decisions)
	if at < 0 {
		out.Hit = len(decisions)
		return out
	}
	out.Hit = at
	out.Decision = &decisions[at]
	out.Shown = &decisions[shown]
	m := MarkOf(q, at)
	switch {
	case decisions[at].Allowed:
		out.Overage = overage
		if overage > out.ExceededBy {
			out.Exceeded = over
			out.ExceededBy = overage
		}
	case m != nil:
		out.Status = m.Status
		out.Message = m.Message
		out.Wait = m.RetryAfter
	default:
		out.Status = http.StatusTooManyRequests
	}
	return out
}

// countQuota converts a decision on a limit with overage to a decision on its quota, and returns the units
// used beyond the quota.
func countQuota(d *ratelimit.Decision, quota int64) int64 {
	used := d.Quota - d.Remaining
	d.Quota = quota
	if d.Source == ratelimit.Undecided {
		return 0
	}
	d.Remaining = quota - used
	if d.Remaining >= 0 {
		return 0
	}
	beyond := -d.Remaining
	d.Remaining = 0
	return beyond
}
