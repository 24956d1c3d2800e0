package respond

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Outcome is the result for a request. It describes whether the request passes, and its response.
type Outcome struct {
	// Kind is the outcome in one word.
	Kind outcome.Kind

	// Status is 0 if the request passes, else the status of its refusal. A limit refuses with 429, or with
	// the status of its rule. The policy refuses with the status of its rule or reason. Without a decision
	// the status is 503, if OnError is Deny or Err is ratelimit.ErrOverloaded.
	Status int

	// Reason is set if no limit decided: why the policy refused the request, or the kind of Err.
	Reason policy.Reason

	// Message is the text of a refusal. If it is "", Status or Reason supplies the text.
	Message string

	// RetryAfter replaces the wait of Decision in Retry-After, unless it is 0.
	RetryAfter time.Duration

	// Overage counts the units beyond the quota of a limit with overage, and OverageUnit is the unit.
	Overage     int64
	OverageUnit option.Unit

	// Hit is the index of the deciding hit: the refused hit with the longest RetryAfter. If all hits pass, it
	// is the hit with the least remaining, preferably on a limit other than in_flight. Without a decision it
	// is the first hit that is not Independent, or the number of hits if all are Independent.
	Hit int

	// Decision is the decision on Hit, or nil without a decision. Unit is the unit of its numbers; "" means
	// requests.
	Decision *ratelimit.Decision
	Unit     option.Unit

	// Requests and Tokens are the decisions that the X-RateLimit headers describe: on limits of requests, and
	// on limits of tokens. Nil has no headers.
	Requests, Tokens *ratelimit.Decision

	// Hidden reports by the index of a hit that no header describes the limit. Nil hides none.
	Hidden []bool

	// RPC is the Content-Type in which the client of gRPC, gRPC-Web or Connect reads a refusal, or "" if the
	// request is no remote call; see SetContent.
	RPC string

	// Object reports that the body of a refusal has an object as its error; see Body. Anthropic reports that
	// a client of Anthropic's API reads it. Limit is the name of the limit that refused the request, or "".
	Object, Anthropic bool
	Limit             string

	// ExceededHit is the index of a hit that passed although it exceeds its quota, because of overage or the
	// mode shadow. ExceededBy is the number of units beyond the quota, or 0 without such a hit.
	ExceededHit int
	ExceededBy  int64

	// Err is the reason why no decision was possible, or nil.
	Err error
}

// Tightest returns the index of the deciding hit; see Outcome.Hit. It ignores hits that are Independent. If
// all hits are Independent, it returns -1. It also ignores those for which skip is true; skip may be nil.
func Tightest(hits []ratelimit.Hit, decisions []ratelimit.Decision, skip []bool) int {
	best := []int{-1, -1} // of all, and of quotas, which slots must not hide
	for i := range decisions {
		h := &hits[i]
		d := &decisions[i]
		if h.Independent || skip != nil && skip[i] {
			continue
		}
		isQuota := h.Limit.Algorithm != ratelimit.InFlight && d.Source != ratelimit.Undecided
		for k, at := range best {
			if k == 1 && !isQuota {
				continue
			}
			if at < 0 || d.Allowed && decisions[at].Allowed && d.Remaining < decisions[at].Remaining ||
				!d.Allowed && (decisions[at].Allowed || d.RetryAfter > decisions[at].RetryAfter) {
				best[k] = i
			}
		}
	}
	if best[1] >= 0 && decisions[best[0]].Allowed {
		return best[1]
	}
	return best[0]
}

// RetrySeconds returns the wait of a refused request in whole seconds, rounded up, at least 1. RetrySeconds
// returns 0 if no limit refused the request, or if the request can never pass.
func (o *Outcome) RetrySeconds() int64 {
	if o.RetryAfter > 0 {
		return retrySeconds(o.RetryAfter)
	}
	if o.Decision == nil || o.Decision.Allowed {
		return 0
	}
	return retrySeconds(o.Decision.RetryAfter)
}

// retrySeconds rounds the wait of a refusal up to whole seconds, at least 1. retrySeconds returns 0 for
// Never.
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
