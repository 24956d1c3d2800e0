package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// chargeOf returns what a hit on a limit of tokens is charged before the response, at most quota. Before the
// body is read, it returns 1.
func chargeOf(q *Request, source *option.CostSource, quota int64) int64 {
	u := q.Upload
	if u != nil && u.length < 0 && !u.optional {
		return 1
	}
	input := inputOf(u, q.HTTP.ContentLength)
	output := outputOf(u, q.price, source)
	money := int64(0)
	if source.Unit == option.Money && q.price != nil {
		_, _, cost := q.price.Estimate(input, output, u.Prompt.Tier)
		money = (policy.Billionths(cost) + 999) / 1000
	}
	return source.Charge(input, output, money, quota)
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
		return u.Prompt.Input(u.length)
	}
	return option.InputOf(length)
}
