package edge

import (
	"context"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Decider is what Take needs besides the hits of a request.
type Decider struct {
	Store   ratelimit.Store
	Timeout time.Duration // of the database; see ratelimit.Store.Take
	Began   time.Time     // when the wait of a request began, if it did not begin with Take: the bound of all waits counts from then on
	OnError OnError

	inPostgres *store.Store // Store, if UseStore has set one that counts in Postgres, else nil
}

// Take takes the hits of a request, and returns what happens to the request. Its Decisions must be as many as its Hits, of
// which those of the policy are the last ones. Hits that are Apart refuse nothing: a request without other hits passes.
func (d *Decider) Take(q *Request) respond.Outcome {
	if len(q.Hits) == 0 {
		return respond.Outcome{}
	}
	ctx := background
	if !d.Began.IsZero() {
		within, cancel := context.WithDeadlineCause(ctx, d.Began.Add(batch.MostTimeouts*d.Timeout), ratelimit.ErrOverloaded)
		defer cancel()
		ctx = within
	}
	if err := d.Store.Take(ctx, d.Timeout, q.Hits, q.Decisions); err != nil {
		return d.TakeLocal(q, err)
	}
	return Judge(q)
}

// After returns a copy of d for a request that began then, and which the policy has delayed. failure is why the policy could not
// decide, or nil: then the bound of all waits counts from then on. After a failure, the limits that hold nevertheless have
// the whole time.
func (d *Decider) After(began time.Time, failure error) Decider {
	after := *d
	if failure == nil && time.Since(began) > d.Timeout/10 { // so little time changes nothing
		after.Began = began
	}
	return after
}

// Judge is the outcome of a request by its Decisions, see Take. A decision on a limit with overage becomes one on its quota.
func Judge(q *Request) respond.Outcome {
	decisions := q.Decisions
	marks := q.Verdict.Marks
	first := len(decisions) - len(marks)
	overage := int64(0)
	for i, m := range marks {
		if m.Overage {
			if beyond := countQuota(&decisions[first+i], m.Quota); beyond > overage && !m.Shadow {
				overage = beyond
			}
		}
	}
	at := respond.Tightest(q.Hits, decisions)
	if at < 0 {
		return respond.Outcome{}
	}
	out := respond.Outcome{Hit: at, Decision: &decisions[at]}
	switch {
	case decisions[at].Allowed:
		out.Overage = overage
	case at >= first:
		m := marks[at-first]
		out.Status = m.Status
		out.Message = m.Message
		out.Wait = m.RetryAfter
	default:
		out.Status = http.StatusTooManyRequests
	}
	return out
}

// countQuota makes a decision on a limit with overage one on its quota, and returns how much is
// used beyond the quota.
func countQuota(d *ratelimit.Decision, quota int64) int64 {
	beyond := int64(0)
	used := d.Limit - d.Remaining
	d.Limit = quota
	if d.Source == ratelimit.Undecided {
		return 0
	}
	d.Remaining = quota - used
	if d.Remaining < 0 {
		beyond = -d.Remaining
		d.Remaining = 0
	}
	return beyond
}
