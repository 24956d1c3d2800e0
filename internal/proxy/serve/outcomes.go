package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SetOutcomes sets the outcomes of requests from their Decisions, one for each of their Hits. Hits that are
// Independent never refuse. A decision on a limit with overage becomes a decision on its quota.
func SetOutcomes(all ...*Request) {
	for _, q := range all {
		decisions := q.Decisions
		overage := int64(0)
		over := 0 // the index of the hit with the overage
		q.Outcome = respond.Outcome{}
		out := &q.Outcome
		mixed := false // a limit counts tokens, or has no fields
		at := 0
		for i := range decisions {
			h := &q.Hits[i]
			d := &decisions[i]
			t := q.Terms[i]
			if t.Overage || q.free && t.Rule != "" {
				if beyond := countQuota(d, t.Quota); beyond > overage && t.Overage && !t.Shadow {
					overage = beyond
					over = i
				}
			}
			if h.Independent && !d.Allowed && d.Source != ratelimit.Undecided &&
				h.Cost-d.Remaining > out.ExceededBy {
				out.ExceededHit = i
				out.ExceededBy = h.Cost - d.Remaining
			}
			mixed = mixed || t.Hidden || t.CostSource != nil && t.CostSource.Unit != ""
		}
		if len(decisions) != 1 || q.Hits[0].Independent {
			at = respond.Tightest(q.Hits, decisions, nil)
		}
		if at < 0 {
			out.Hit = len(decisions)
			continue
		}
		out.Hit = at
		out.Decision = &decisions[at]
		out.Requests = out.Decision
		if decisions[at].Allowed {
			out.Overage = overage
			if overage > 0 {
				out.OverageUnit = q.Terms[over].CostSource.UnitOf()
			}
			if overage > out.ExceededBy {
				out.ExceededHit = over
				out.ExceededBy = overage
			}
		} else {
			out.Kind = outcome.Limited
			out.Status = q.Terms[at].Status
			out.Message = q.Terms[at].Message
			out.RetryAfter = q.Terms[at].RetryAfter
		}
		if mixed {
			out.Hidden = make([]bool, len(q.Hits))
		}
	}
	setShown(all)
}

// Exceeded returns the prefix of the limit that let a request pass beyond its quota, and how much is beyond
// it, or "" without such a limit.
func (q *Request) Exceeded() (prefix, amount string) {
	o := &q.Outcome
	if o.ExceededBy == 0 {
		return "", ""
	}
	return q.Hits[o.ExceededHit].Limit.Prefix, q.Terms[o.ExceededHit].CostSource.UnitOf().Amount(o.ExceededBy)
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

// setShown sets the decisions that the fields describe, for requests with limits that count tokens or have
// no fields: the tightest one on limits of requests, and the tightest one on limits of tokens. A refusal by
// a limit without fields has none, because other limits do not explain it.
func setShown(all []*Request) {
	for _, q := range all {
		out := &q.Outcome
		if out.Hidden == nil {
			continue
		}
		out.Unit = option.Requests
		if source := q.Terms[out.Hit].CostSource; source != nil && source.Unit != "" {
			out.Unit = source.Unit
		}
		out.Requests = nil
		notRequests := make([]bool, len(q.Hits))
		notTokens := make([]bool, len(q.Hits))
		requests, tokens := 0, 0 // how many limits
		ofRequests, ofTokens := 0, 0
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
			if !notRequests[i] {
				requests++
				ofRequests = i
			}
			if !notTokens[i] {
				tokens++
				ofTokens = i
			}
		}
		if out.Hidden[out.Hit] && !out.Decision.Allowed {
			continue
		}
		if requests > 1 {
			ofRequests = respond.Tightest(q.Hits, q.Decisions, notRequests)
		}
		if tokens > 1 {
			ofTokens = respond.Tightest(q.Hits, q.Decisions, notTokens)
		}
		if requests > 0 {
			out.Requests = &q.Decisions[ofRequests]
		}
		if tokens > 0 {
			out.Tokens = &q.Decisions[ofTokens]
		}
	}
}
