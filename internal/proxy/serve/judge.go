package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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
		if t := q.Terms[i]; t.Overage || q.free && t.Rule != "" {
			if beyond := countQuota(d, t.Quota); beyond > overage && t.Overage && !t.Shadow {
				overage = beyond
				over = i
			}
		}
		if h.Independent && !d.Allowed && d.Source != ratelimit.Undecided &&
			h.Cost-d.Remaining > out.ExceededBy {
			out.Exceeded = i
			out.ExceededBy = h.Cost - d.Remaining
		}
	}
	at := respond.Tightest(q.Hits, decisions, nil)
	if at < 0 {
		out.Hit = len(decisions)
		return out
	}
	out.Hit = at
	out.Decision = &decisions[at]
	out.Requests = out.Decision
	if isMixed(q) {
		setShown(&out, q)
	}
	if decisions[at].Allowed {
		out.Overage = overage
		if overage > 0 {
			out.OverageUnit = q.Terms[over].CostSource.UnitOf()
		}
		if overage > out.ExceededBy {
			out.Exceeded = over
			out.ExceededBy = overage
		}
		return out
	}
	out.Kind = outcome.Limited
	out.Status = q.Terms[at].Status
	out.Message = q.Terms[at].Message
	out.Wait = q.Terms[at].RetryAfter
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

// isMixed reports whether a limit of a request counts tokens, or has no fields.
func isMixed(q *Request) bool {
	if q.Limits != nil && q.Limits.Mixed {
		return true
	}
	if !q.Asked || q.Verdict.Simple {
		return false
	}
	for _, t := range q.Verdict.Terms {
		if t.Hidden || t.CostSource != nil && t.CostSource.Unit != "" {
			return true
		}
	}
	return false
}

// setShown sets the decisions that the fields describe: the tightest one on limits of requests, and the
// tightest one on limits of tokens. A refusal by a limit without fields has none, because other limits do not
// explain it.
func setShown(out *respond.Outcome, q *Request) {
	out.Unit = option.Requests
	if source := q.Terms[out.Hit].CostSource; source != nil && source.Unit != "" {
		out.Unit = source.Unit
	}
	out.Requests = nil
	out.Hidden = make([]bool, len(q.Hits))
	notRequests := make([]bool, len(q.Hits))
	notTokens := make([]bool, len(q.Hits))
	hasRequests, hasTokens := false, false
	for i, terms := range q.Terms {
		unit := option.Unit("")
		if terms.CostSource != nil {
			unit = terms.CostSource.Unit
		}
		hidden := terms.Hidden || unit == option.Money // a limit in money has no fields
		out.Hidden[i] = hidden
		hasNone := hidden || q.Hits[i].Independent || q.Decisions[i].Source == ratelimit.Undecided
		notRequests[i] = hasNone || unit != ""
		notTokens[i] = hasNone || unit == ""
		hasRequests = hasRequests || !notRequests[i]
		hasTokens = hasTokens || !notTokens[i]
	}
	if out.Hidden[out.Hit] && !out.Decision.Allowed {
		return
	}
	if hasRequests {
		out.Requests = &q.Decisions[respond.Tightest(q.Hits, q.Decisions, notRequests)]
	}
	if hasTokens {
		out.Tokens = &q.Decisions[respond.Tightest(q.Hits, q.Decisions, notTokens)]
	}
}
