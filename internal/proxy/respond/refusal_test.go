package respond_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// refusals are outcomes that refuse a request.
func refusals() map[string]respond.Outcome {
	limited := func(wait time.Duration) respond.Outcome {
		return respond.Outcome{Status: 429, Limit: "plan/tpm",
			Decision: &ratelimit.Decision{RetryAfter: wait}}
	}
	budget := func(unit option.Unit, wait time.Duration) respond.Outcome {
		return respond.Outcome{Status: 429, Limit: "team/month", Unit: unit,
			Decision: &ratelimit.Decision{RetryAfter: wait,
				Reset: time.Date(2026, 12, 1, 1, 0, 2, 0, time.FixedZone("CET", 3600))}}
	}
	paid := budget(option.Money, time.Hour)
	paid.Status, paid.Message, paid.RetryAfter = 402, "Your plan is used up", time.Second
	return map[string]respond.Outcome{
		"a minute": limited(time.Minute), "more than a minute": limited(time.Minute + 1),
		"24 days": limited(2147483 * time.Second), "a month": limited(31 * 24 * time.Hour),
		"never":                limited(ratelimit.Never),
		"a ban without an end": {Status: 403, Reason: policy.Banned},
		"a ban for an hour":    {Status: 403, Reason: policy.Banned, RetryAfter: time.Hour},
		"an overload":          {Status: 503, Err: ratelimit.ErrOverloaded, RetryAfter: time.Second},
		"no decision":          {Status: 503, Err: ratelimit.ErrTimeout},
		"a message":            {Status: 402, Message: `Pay \"me\"`},
		"an ambiguous path":    {Status: 400, Reason: policy.AmbiguousPath},
		"an unknown key":       {Status: 401, Reason: policy.UnknownKey},
		"a status of clients":  {Status: 418}, "a status of servers": {Status: 599},
		"a budget in money":    budget(option.Money, time.Hour),
		"a budget of tokens":   budget(option.InputTokens, time.Minute+1),
		"tokens that are held": budget(option.Tokens, time.Minute),
		"a limit of requests":  budget(option.Requests, time.Hour), "no unit": budget("", time.Hour),
		"more than the budget": budget(option.Money, ratelimit.Never), "a budget with a message": paid,
	}
}

// Each refusal is a golden text: the fields, the body as a text, and as objects for the SDKs of OpenAI and of
// Anthropic. Retry-After fits into a timer of 32 bits of milliseconds, and the body has the true time.
// X-Should-Retry forbids a retry after more than a minute. No cache stores a refusal. The object names the
// limit. A budget that is used up says when it opens; what is only held, and a limit of requests, do not.
func TestRefusalsTellClientsWhenToRetry(t *testing.T) {
	text, outcomes := "", refusals()
	for _, what := range slices.Sorted(maps.Keys(outcomes)) {
		o, h := outcomes[what], http.Header{}
		respond.SetFields(h, settings.Fields{}, nil, &o, nil, nil)
		text += fmt.Sprintln(what, h)
		for _, form := range []string{"text", "OpenAI", "Anthropic"} {
			o.Object, o.Anthropic = form != "text", form == "Anthropic"
			if body := o.Body(); json.Valid([]byte(body)) {
				text += "\t" + form + ": " + body + "\n"
			} else {
				t.Errorf("%s: %s is no JSON", what, body)
			}
		}
	}
	golden.Check(t, "testdata/refusals.txt", text)
}
