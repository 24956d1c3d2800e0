package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// chargeOf returns what a hit on a limit of tokens is charged before the response, at most quota. Before the
// body is read, it returns 1.
func chargeOf(q *Request, how *option.Settle, quota int64) int64 {
	if q.Upload != nil && q.Upload.length < 0 && !q.Upload.optional {
		return 1
	}
	input := inputOf(q)
	output := outputOf(q, how)
	money := int64(0)
	if how.Unit == option.Money && q.price != nil {
		parts := q.price.Estimate(input, output, askedTier(q))
		cost := q.price.Cost(parts, q.price.Dearer(parts, askedTier(q)))
		money = (policy.Billionths(cost) + 999) / 1000
	}
	return how.Charge(input, output, money, quota)
}

// outputOf returns the output that a request may get: the maximum that it names, or else that of a limit, and
// at most the largest one of its model for each answer.
func outputOf(q *Request, how *option.Settle) int64 {
	output := int64(0)
	if q.Upload != nil {
		output = q.Upload.Prompt.Output
	}
	if output == 0 {
		output = how.Output
	}
	if p := q.price; p != nil && p.MaxOutput > 0 {
		most := p.MaxOutput
		if n := q.Upload.Prompt.Answers; n > 1 && most <= ratelimit.MaxEvents/n {
			most *= n
		}
		if output > most {
			output = most
		}
	}
	return output
}

// askedTier returns the tier that a request asks for, or "".
func askedTier(q *Request) string {
	if q.Upload == nil {
		return ""
	}
	return q.Upload.Prompt.Tier
}

// passesBatches reports whether all enforced limits of tokens that apply to a request let batches pass.
func passesBatches(q *Request) bool {
	for _, terms := range [][]*policy.Terms{q.Limits.Terms, q.Verdict.Terms} {
		for _, t := range terms {
			if t.Settle.CountsTokens() && !t.Settle.Batches && !t.Shadow {
				return false
			}
		}
	}
	return true
}

// inputOf estimates the tokens of a request's prompt.
func inputOf(q *Request) int64 {
	if q.Upload != nil {
		return q.Upload.Prompt.Input(q.Upload.length)
	}
	return option.InputOf(q.HTTP.ContentLength)
}
