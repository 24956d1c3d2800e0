package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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
