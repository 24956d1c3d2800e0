package respond

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Outcome says what happens to a request.
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

	// Overage counts the units beyond the quota of a limit with overage.
	Overage int64

	// Hit is the index of the hit that decides: the refused hit with the longest RetryAfter. If all hits
	// pass, it is the hit with the least remaining, of a limit other than in_flight if there is one.
	Hit int

	// Decision is the decision on Hit, or nil without a decision.
	Decision *ratelimit.Decision

	// Shown is the decision that the X-RateLimit fields describe, if it is not Decision: slots must not hide
	// a quota.
	Shown *ratelimit.Decision

	// Ahead is by how many seconds the clock of the database is ahead of this process.
	Ahead int64

	// Exceeded is the index of a hit beyond its quota that passed, because of overage or the mode shadow, and
	// ExceededBy by how many units. ExceededBy is 0 without such a hit.
	Exceeded   int
	ExceededBy int64

	// Err is the reason for a request without a decision.
	Err error
}

// Tightest returns the indices of the decision that decides and of the one that the X-RateLimit fields
// describe, see Outcome. It ignores hits that are Apart, and returns -1 without others.
func Tightest(hits []ratelimit.Hit, decisions []ratelimit.Decision) (decides, shown int) {
	decides = -1
	shown = -1
	for i := range decisions {
		h := &hits[i]
		d := &decisions[i]
		if h.Apart {
			continue
		}
		if decides < 0 || tighter(d, &decisions[decides]) {
			decides = i
		}
		isQuota := h.Limit.Algorithm != ratelimit.InFlight && d.Source != ratelimit.Undecided
		if isQuota && (shown < 0 || tighter(d, &decisions[shown])) {
			shown = i
		}
	}
	switch {
	case shown < 0:
		shown = decides
	case decisions[decides].Allowed:
		decides = shown
	}
	return decides, shown
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

// resetSeconds returns Decision.Reset by the clock of this process, in Unix seconds, rounded up. ahead is
// Outcome.Ahead.
func resetSeconds(d *ratelimit.Decision, ahead int64) int64 {
	seconds := d.Reset.Add(time.Second - 1).Unix()
	if d.Source == ratelimit.FromMemory {
		return seconds // by the clock of this process
	}
	return seconds - ahead
}
