package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// chargeTokens sets what the hits of some requests on limits of tokens are charged before the response, at
// most the quota, or 1 before the body is read. Terms[i] of a request describes hits[k][i].
func chargeTokens(requests []*Request, hits [][]ratelimit.Hit, some []int) {
	for _, k := range some {
		q := requests[k]
		u := q.Upload
		if u == nil {
			q.prompt = option.InputOf(q.HTTP.ContentLength)
		}
		for i, t := range q.Terms {
			source := t.CostSource
			if source == nil || source.Unit == "" {
				continue
			}
			h := &hits[k][i]
			output := source.Output
			if u != nil && u.Prompt.Output != 0 {
				output = u.Prompt.Output
			}
			if u != nil && u.most > 0 && output > u.most {
				output = u.most
			}
			money := int64(0)
			if source.Unit == option.Money && q.price != nil {
				_, _, cost := q.price.Estimate(q.prompt, output, u.Prompt.ServiceTier)
				money = (policy.Billionths(cost) + 999) / 1000
			}
			h.Cost = source.Charge(q.prompt, output, money, t.Quota)
			if u != nil && u.length < 0 && !u.optional {
				h.Cost = 1
			}
			if source.Unit != option.Money {
				continue
			}
			// A shadow rule does not refuse a request without a price, so it does not count it either.
			h.Peek = t.Shadow && q.price == nil
			if q.free {
				unlimited := *h.Limit
				unlimited.Events = policy.MaxCount
				h.Limit = &unlimited
				h.Peek = true
			}
		}
	}
}

// passesBatchAPI reports whether all enforced limits of tokens that apply to a request let batches pass.
func passesBatchAPI(q *Request) bool {
	for _, terms := range [][]*policy.Terms{q.Limits.Terms, q.Verdict.Terms} {
		for _, t := range terms {
			if t.CostSource.CountsTokens() && !t.CostSource.BatchAPI && !t.Shadow {
				return false
			}
		}
	}
	return true
}

// estimate sets what the request may cost.
func (s *Settling) estimate() {
	t := s.tokens
	u := t.upload
	output := int64(0) // the largest estimate
	for i := range s.hits {
		if n := s.hits[i].source.Output; n > output {
			output = n
		}
	}
	if u != nil && u.Prompt.Output != 0 {
		output = u.Prompt.Output
	}
	if u != nil && u.most > 0 && output > u.most {
		output = u.most
	}
	t.estimated = true
	parts := option.Parts{}
	parts[option.Input] = t.prompt
	parts[option.Output] = output
	parts[option.Request] = 1
	if t.price != nil {
		dearest, serviceTier, _ := t.price.Estimate(t.prompt, output, u.Prompt.ServiceTier)
		parts = dearest
		t.serviceTier = serviceTier
	}
	t.shares = []priced{{usage.Share{Parts: parts}, t.price, t.prompt, output}}
}
