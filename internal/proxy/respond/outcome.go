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

	// Hit is the index of the hit that the headers of the response describe. If all hits
	// are allowed, it is the hit with the least remaining. Otherwise it is the refused hit
	// with the longest RetryAfter.
	Hit int

	// Decision is the decision on Hit, or nil if no decision was made.
	Decision *ratelimit.Decision

	// Err is the reason for a request without a decision.
	Err error
}

// Tightest returns the index of the decision that the headers describe, see Outcome.Hit. It ignores hits that
// are Apart, and returns -1 without others.
func Tightest(hits []ratelimit.Hit, decisions []ratelimit.Decision) int {
	at := -1
	for i := range decisions {
		if !hits[i].Apart && (at < 0 || tighter(&decisions[i], &decisions[at])) {
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
