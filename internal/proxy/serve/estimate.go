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
		input := int64(0)
		if u == nil {
			input = option.InputOf(q.HTTP.ContentLength)
		} else {
			input = u.input
		}
		for i, t := range q.Terms {
			source := t.CostSource
			if source == nil || source.Unit == "" {
				continue
			}
			h := &hits[k][i]
			output := source.Output
			if q.price != nil {
				output = outputOf(u, q.price, source)
			} else if u != nil && u.Prompt.Output != 0 {
				output = u.Prompt.Output
			}
			money := int64(0)
			if source.Unit == option.Money && q.price != nil {
				_, _, cost := q.price.Estimate(input, output, u.Prompt.Tier)
				money = (policy.Billionths(cost) + 999) / 1000
			}
			h.Cost = source.Charge(input, output, money, t.Quota)
			if u != nil && u.length < 0 && !u.optional {
				h.Cost = 1
			}
			if source.Unit != option.Money {
				continue
			}
			// A shadow rule does not refuse a request without a price, so it does not count it either.
			h.Peek = t.Shadow && q.price == nil
			if q.free {
				all := *h.Limit
				all.Events = policy.MaxCount
				h.Limit = &all
				h.Peek = true
			}
		}
	}
}

// outputOf returns the output that a request with an Upload may get: the maximum that it names, or else that
// of a limit, and at most the largest one of its model for each answer. u and p may be nil.
func outputOf(u *Upload, p *policy.Price, source *option.CostSource) int64 {
	output := int64(0)
	if u != nil {
		output = u.Prompt.Output
	}
	if output == 0 {
		output = source.Output
	}
	if p != nil && p.MaxOutput > 0 {
		most := p.MaxOutput
		if n := u.Prompt.Answers; n > 1 && most <= ratelimit.MaxEvents/n {
			most *= n
		}
		if output > most {
			output = most
		}
	}
	return output
}

// passesBatches reports whether all enforced limits of tokens that apply to a request let batches pass.
func passesBatches(q *Request) bool {
	for _, terms := range [][]*policy.Terms{q.Limits.Terms, q.Verdict.Terms} {
		for _, t := range terms {
			if t.CostSource.CountsTokens() && !t.CostSource.Batches && !t.Shadow {
				return false
			}
		}
	}
	return true
}

// inputOf estimates the tokens of a request's prompt. length is that of the request, for a nil u.
func inputOf(u *Upload, length int64) int64 {
	if u != nil {
		return u.input
	}
	return option.InputOf(length)
}

// estimate sets what the request may cost.
func (s *Settling) estimate() {
	t := s.tokens
	input := inputOf(t.upload, t.length)
	output := int64(0) // the largest estimate
	for i := range s.hits {
		one := &s.hits[i]
		if one.Limit != nil && one.source.Unit != "" {
			if n := outputOf(t.upload, t.price, one.source); n > output {
				output = n
			}
		}
	}
	t.estimated = true
	parts := option.Parts{}
	parts[option.Input] = input
	parts[option.Output] = output
	parts[option.Request] = 1
	if t.price != nil {
		dearest, tier, _ := t.price.Estimate(input, output, t.upload.Prompt.Tier)
		parts = dearest
		t.tier = tier
	}
	t.shares = []priced{{usage.Share{Parts: parts}, t.price, input, output}}
}
