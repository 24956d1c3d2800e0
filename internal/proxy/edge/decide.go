package edge

import (
	"context"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
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

// Outcome is what happens to a request.
type Outcome struct {
	// Status is 0 if the request passes, else the status of its refusal: 429 if a
	// limit refused it, or what the rule of that limit says, 503 if no decision was
	// possible and OnError is Deny or Err is ratelimit.ErrOverloaded, or what the policy says.
	Status int

	// Reason is set if the policy alone refused the request.
	Reason policy.Reason

	// Message is the text of a refusal; "" is that of Status or Reason.
	Message string

	// Wait is for Retry-After instead of the time of Decision; 0 is none of its own.
	Wait time.Duration

	// Overage is how much is used beyond the quota of a limit with overage.
	Overage int64

	// Hit is the index of the hit that the headers of the response describe. If all hits
	// are allowed, it is the hit with the least remaining. Otherwise it is the refused hit
	// with the longest RetryAfter.
	Hit int

	// Decision is the decision on Hit, or nil if no decision was made.
	Decision *ratelimit.Decision

	// Err is why no decision was possible.
	Err error
}

// Take takes the hits of a request, and returns what happens to the request. Its Decisions must be as many as its Hits, of
// which those of the policy are the last ones. Hits that are Apart refuse nothing: a request without other hits passes.
func (d *Decider) Take(q *Request) Outcome {
	if len(q.Hits) == 0 {
		return Outcome{}
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
func Judge(q *Request) Outcome {
	hits := q.Hits
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
	at := -1
	for i := range decisions {
		if !hits[i].Apart && (at < 0 || tighter(&decisions[i], &decisions[at])) {
			at = i
		}
	}
	if at < 0 {
		return Outcome{}
	}
	out := Outcome{Hit: at, Decision: &decisions[at]}
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

// Tightest returns the index of the decision that the headers describe, see Outcome.Hit.
func Tightest(decisions []ratelimit.Decision) int {
	at := 0
	for i := 1; i < len(decisions); i++ {
		if tighter(&decisions[i], &decisions[at]) {
			at = i
		}
	}
	return at
}

func tighter(a, b *ratelimit.Decision) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if a.Allowed {
		return a.Remaining < b.Remaining
	}
	return a.RetryAfter > b.RetryAfter
}

// RetrySeconds is the value of Retry-After: whole seconds, rounded up, at least 1. It is
// 0 if no limit refused the request, or if the request can never pass.
func (o *Outcome) RetrySeconds() int64 {
	if o.Wait > 0 {
		return retrySeconds(o.Wait)
	}
	if o.Decision == nil || o.Decision.Allowed {
		return 0
	}
	return retrySeconds(o.Decision.RetryAfter)
}

// retrySeconds is RetrySeconds for the RetryAfter of a refusal.
func retrySeconds(wait time.Duration) int64 {
	if wait == ratelimit.Never {
		return 0
	}
	seconds := int64(wait / time.Second)
	if wait%time.Second > 0 || seconds == 0 {
		seconds++
	}
	return seconds
}
